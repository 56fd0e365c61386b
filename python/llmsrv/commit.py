"""Which commit of the source this installation was built from."""


def built_commit() -> str:
    """The hash, with "+changes" when what was built differed from it. Empty when nobody knew it at build time."""
    try:
        from llmsrv._commit import COMMIT
    except ImportError:  # only a build writes it
        return ""
    return COMMIT
