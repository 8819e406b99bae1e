"""From the settings, the sole reader of the environment, to what the supervisor wants to know."""

from urllib.parse import urlparse

from django.conf import settings

from controlplane.settings import BASE_DIR, Env
from controlplane.supervisor.launch import Options
from controlplane.supervisor.layout import Layout, layout_for


def options_from_settings() -> Options:
    """A service whose URL is not set is embedded."""
    env: Env = settings.FARRIER
    given = env.model_fields_set
    origin = urlparse(env.origin)
    return Options(
        root=BASE_DIR,
        home=env.home,
        database_url=env.database_url if "database_url" in given else None,
        owner_database_url=env.owner_database_url or None,
        redis_url=env.redis_url if "redis_url" in given else None,
        host=origin.hostname or "127.0.0.1",
        port=origin.port or 8700,
        gateway_port_base=env.gateway_port_base,
        nodes=env.nodes,
        hardware=env.hardware,
    )


def layout_from_settings() -> Layout:
    """Where the state of this installation lies."""
    return layout_for(settings.FARRIER.home, BASE_DIR)
