"""What the admin API says of shadow traffic and of compared answers."""

from __future__ import annotations

from pydantic import Field

from lb.admin.models import Amount, Count, Latency, View


class Agreement(View):
    """How often two answers were the same."""

    compared: Count = Field(description="Pairs of answers.")
    same: Count = Field(description="Those that were the same.")
    percent: Amount | None = Field(description="Share of those; null without any.")
    low_percent: Amount = Field(description="Lower end of its confidence interval of 99 percent.")
    high_percent: Amount = Field(description="Upper end of that.")


class ComparedOutput(View):
    """One output over all pairs of answers."""

    name: str
    agreement: Agreement = Field(description="Same type, shape and values within the tolerance.")
    noise: Agreement = Field(description="The same of two answers of the model in service.")
    differs: bool | None = Field(
        description="Whether it certainly differs more often than two answers of the model in "
        "service; null while too few of those were compared."
    )
    form_differs: Count = Field(description="Pairs of another type or shape, or without it.")
    elements: Count = Field(description="Elements of all pairs that have the same form.")
    elements_outside: Count = Field(description="Elements that are not within the tolerance.")
    nan_differs: Count = Field(description="Elements that are NaN in one answer only.")
    max_abs: Amount = Field(description="Largest absolute difference.")
    max_rel: Amount = Field(description="Largest difference relative to the value in service.")
    min_cosine: float | None = Field(description="Smallest cosine of both tensors.")
    noise_max_abs: Amount = Field(
        description="Largest absolute difference between two answers of the model in service."
    )
    top_1: Agreement = Field(description="Every row has its largest value at the same place.")
    top_1_noise: Agreement
    top_k: Agreement = Field(description="Every row has the same k largest values.")
    decades: dict[str, int] = Field(
        description="Pairs by the decimal exponent of their largest absolute difference: `1e-3` is "
        "from 0.001 to 0.01, and `0` none. Types without fractions are `different` or `0`."
    )


class ComparedExample(View):
    """A request whose answers differ."""

    id: str = Field(description="Its `x-request-id`.")
    output: str = Field(description="The output that differs most; empty: the statuses differ.")
    why: str
    error: Amount = Field(description="Largest absolute difference.")


class Comparison(View):
    """The shadow of a name, and how its answers compare."""

    model: str = Field(description="The name that clients use.")
    shadow: str = Field(description="The model that gets copies, and its version behind a colon.")
    percent: Amount = Field(description="Share of the inferences that are copied.")
    atol: Amount = Field(description="Absolute tolerance.")
    rtol: Amount = Field(description="Tolerance relative to the value in service.")
    top_k: Count = Field(description="Largest values of a row that are compared as a set.")
    notes: list[str] = Field(description="Why nothing is copied or compared now.")
    copies: dict[str, int] = Field(description="What became of copies.")
    noise_copies: dict[str, int] = Field(
        description="What became of those to the model in service."
    )
    agreement: Agreement = Field(description="Same status and outputs within the tolerance.")
    noise: Agreement = Field(description="The same of two answers of the model in service.")
    differs: bool | None = Field(
        description="Whether the shadow certainly differs more often than two answers of the model "
        "in service, as a whole or in an output; null while too few of those were compared."
    )
    status_differs: Count = Field(description="Pairs with another status.")
    unreadable: Count = Field(description="Pairs that could not be compared.")
    dropped: Count = Field(
        description="Pairs of all names that were not compared, since there were too many."
    )
    latency: Latency = Field(description="Of the requests that were copied, as clients saw it.")
    shadow_latency: Latency = Field(description="Of answers to copies, with their connection.")
    outputs: list[ComparedOutput] = Field(description="The one that differs most often first.")
    examples: list[ComparedExample] = Field(description="At most 20, the largest error first.")


class Comparisons(View):
    """All names with a shadow."""

    models: list[Comparison]
