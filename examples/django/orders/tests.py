# orders/tests.py
from unittest import mock

from django.core import mail
from django.test import TestCase, TransactionTestCase

from fennelq import Status
from orders.models import Order
from orders.tasks import confirm

TEA = {"item": "tea", "email": "ann@example.org"}


class TheTask(TestCase):
    """Calls the task like a function, without a queue, a worker or Redis."""

    def test_the_customer_gets_one_mail_however_often_it_runs(self) -> None:
        order = Order.objects.create(**TEA)
        confirm(order.pk)
        confirm(order.pk)
        self.assertEqual([message.to for message in mail.outbox], [["ann@example.org"]])


class TheSending(TestCase):
    """A TestCase never commits, so Django collects the functions that it would call after the commit."""

    def test_an_order_is_confirmed_after_the_commit(self) -> None:
        with mock.patch("orders.signals.send_confirmation") as send:
            with self.captureOnCommitCallbacks(execute=True):
                response = self.client.post("/orders", TEA)
                send.assert_not_called()
            send.assert_called_once_with(response.json()["order"])


class TheWholeWay(TransactionTestCase):
    """A TransactionTestCase commits, so the job goes to the server of the tests."""

    def test_the_job_is_in_the_queue(self) -> None:
        response = self.client.post("/orders", TEA)
        number = response.json()["order"]
        same = confirm.sync.options(key=f"order:{number}").delay(number)
        self.assertTrue(same.deduplicated)  # the job that the signal has sent holds the key
        self.assertIs(same.status(), Status.SENT)
