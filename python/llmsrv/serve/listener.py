"""What every transport knows of the services: nothing until the models are loaded, then all requests go there."""

from llmsrv.entry import Entry
from llmsrv.errors import Code, ServiceError
from llmsrv.serve.call_errors import CallErrors
from llmsrv.service import GenerationService, State


class Listener:
    """Listens before there is a service, so that probes and clients get an answer."""

    def __init__(self, call_errors: CallErrors | None = None) -> None:
        """`call_errors`: what it shares with other listeners."""
        self.call_errors = call_errors or CallErrors()
        self._service: Entry | None = None

    async def serve(self, *services: GenerationService) -> None:
        """From now on requests are taken. The first service is the default."""
        self._service = Entry(services)

    @property
    def state(self) -> State:
        """The services' state, or STARTING."""
        return State.STARTING if self._service is None else self._service.state

    @property
    def service(self) -> Entry:
        """The entry to all services. Raises UNAVAILABLE while there is none."""
        if self._service is None:
            raise ServiceError(Code.UNAVAILABLE, "the model is loading", reason="STARTING", retry_delay_s=1.0)
        return self._service
