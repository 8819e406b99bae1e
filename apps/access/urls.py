"""Signing in and out, and one's own API tokens."""

from django.contrib.auth import views as auth
from django.urls import path

from apps.access import views
from apps.access.forms import SignInForm

urlpatterns = [
    path(
        "login",
        auth.LoginView.as_view(
            template_name="login.html", redirect_authenticated_user=True, authentication_form=SignInForm
        ),
        name="login",
    ),
    path("logout", auth.LogoutView.as_view(), name="logout"),
    path("tokens/", views.tokens, name="tokens"),
    path("tokens/<str:key>/revoke", views.revoke, name="revoke-token"),
]
