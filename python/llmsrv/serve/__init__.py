"""The daemon: transports over llmsrv.service."""
