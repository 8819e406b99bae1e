from django.apps import AppConfig


class ModelsConfig(AppConfig):
    name = "apps.models"
    label = "registry"
