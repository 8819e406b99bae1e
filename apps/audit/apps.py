from django.apps import AppConfig


class AuditConfig(AppConfig):
    name = "apps.audit"
    label = "audit"

    def ready(self) -> None:
        from apps.access.actors import acted
        from apps.audit.transitions import on_acted

        acted.connect(on_acted, dispatch_uid="audit.record")
