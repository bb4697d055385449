# orders/views.py
from django.http import HttpRequest, JsonResponse
from django.shortcuts import get_object_or_404
from django.views.decorators.csrf import csrf_exempt

from orders.models import Order
from orders.tasks import export, price_of
from shop.queue import app


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


@csrf_exempt
def start_export(request: HttpRequest) -> JsonResponse:
    return JsonResponse({"job": export.sync.delay(int(request.POST["pages"])).id}, status=202)


@csrf_exempt
def look_at_export(request: HttpRequest, job: str) -> JsonResponse:
    result = app.sync.result(job)
    if request.method == "DELETE":
        return JsonResponse({"cancelled": result.cancel("cancelled by the user")})
    progress = result.progress()
    return JsonResponse({"status": result.status(), "part": progress and progress.fraction})
