"""grpc.channelz.v1, what gRPC itself knows of its connections: for --channelz only."""

from grpc.aio import Server


def add_channelz(server: Server) -> str:
    """Adds the service and returns its name. Raises ValueError where its package is not installed."""
    try:
        from grpc_channelz.v1 import channelz, channelz_pb2
    except ImportError:
        raise ValueError("channelz: needs the package grpcio-channelz: pip install 'llmsrv[channelz]'") from None
    channelz.add_channelz_servicer(server)
    return str(channelz_pb2.DESCRIPTOR.services_by_name["Channelz"].full_name)
