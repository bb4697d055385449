# orders/views.py
from django.http import HttpRequest, JsonResponse
from django.shortcuts import get_object_or_404
from django.views.decorators.csrf import csrf_exempt

from orders.models import Order
from orders.tasks import price_of


@csrf_exempt  # so that curl may call it
def buy(request: HttpRequest) -> JsonResponse:
    order = Order.objects.create(item=request.POST["item"], email=request.POST["email"])
    return JsonResponse({"order": order.pk}, status=201)


def look(request: HttpRequest, pk: int) -> JsonResponse:
    order = get_object_or_404(Order, pk=pk)
    return JsonResponse({"order": order.pk, "item": order.item, "confirmed": order.confirmed})


def price(request: HttpRequest, item: str) -> JsonResponse:
    cents = price_of.sync.delay(item).get(timeout=10)
    return JsonResponse({"item": item, "cents": cents})
