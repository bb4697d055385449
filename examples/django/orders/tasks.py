# orders/tasks.py
import time
from datetime import timedelta

from django.core.mail import send_mail
from django.utils import timezone

from fennelq import current_job
from orders.models import Order
from shop.queue import app, with_database

PRICES = {"tea": 300, "coffee": 450}


@app.task(queue="mail", retries=5)
@with_database
def confirm(order_id: int) -> None:
    order = Order.objects.get(pk=order_id)
    if not order.confirmed:  # a job may run twice
        send_mail("Thank you", f"Your {order.item} is on its way.", None, [order.email])
        Order.objects.filter(pk=order_id).update(confirmed=True)


@app.task
@with_database
async def orders_of(email: str) -> int:
    return await Order.objects.filter(email=email).acount()


@app.task
def price_of(item: str) -> int:
    return PRICES[item]


@app.task(queue="reports", retries=0)
def export(pages: int) -> str:
    job = current_job()
    for page in range(1, pages + 1):
        if job.cancelled:  # a thread is not interrupted: it has to look
            raise InterruptedError(job.cancelled)
        time.sleep(0.1)  # stands for the work
        job.sync.progress(page, pages)
    return f"{pages} pages"


def send_confirmation(order_id: int) -> None:
    confirm.sync.options(key=f"order:{order_id}").delay(order_id)


@app.every(300)
@with_database
def confirm_the_rest() -> None:
    a_while_ago = timezone.now() - timedelta(minutes=5)
    for order in Order.objects.filter(confirmed=False, created_at__lt=a_while_ago):
        send_confirmation(order.pk)
