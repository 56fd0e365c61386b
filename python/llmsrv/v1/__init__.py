"""The llmsrv.v1 gRPC API: generated from protos/llmsrv/v1 by protos/generate.py."""
