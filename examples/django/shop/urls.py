# shop/urls.py
from django.urls import path

from orders import views

urlpatterns = [
    path("orders", views.buy),
    path("orders/<int:pk>", views.look),
    path("prices/<str:item>", views.price),
    path("exports", views.start_export),
    path("exports/<str:job>", views.look_at_export),
]
