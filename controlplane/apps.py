from django.apps import AppConfig


class ControlplaneConfig(AppConfig):
    name = "controlplane"

    def ready(self) -> None:
        """Make our Celery application the current one in every process, else wake() rings at a default broker."""
        import workers.celery  # noqa: F401 the settings must stand before it is imported
