"""How a number and what it counts read."""


def counted(number: int, what: str) -> str:
    """As "1 user" or "2,000 users"."""
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"
