# orders/signals.py
from functools import partial
from typing import Any

from django.db import transaction
from django.db.models.signals import post_save
from django.dispatch import receiver

from orders.models import Order
from orders.tasks import send_confirmation


@receiver(post_save, sender=Order)
def confirm_new_order(instance: Order, created: bool, raw: bool, **_: Any) -> None:
    if created and not raw:  # raw: `manage.py loaddata`
        transaction.on_commit(partial(send_confirmation, instance.pk))
