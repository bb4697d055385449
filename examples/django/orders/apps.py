# orders/apps.py
from django.apps import AppConfig
from django.utils.module_loading import autodiscover_modules


class OrdersConfig(AppConfig):
    default_auto_field = "django.db.models.BigAutoField"
    name = "orders"

    def ready(self) -> None:
        # Imports tasks.py and signals.py of every installed app that has one.
        autodiscover_modules("tasks", "signals")
