"""Auth servers may write what they like: an expression or an answer is understood or refused."""

import json
from contextlib import suppress

from hypothesis import given
from hypothesis import strategies as st

from pumpline.core.protocol.expressions import ExpressionError, compile_expression
from pumpline.core.protocol.permissions import GrantError, parse_grant


@given(st.text(alphabet=r"ab1^$.*+?{},()[]:|\-<>=!iPQEzx&~# " + "é\n", max_size=30))
def test_anything_is_compiled_or_refused(expression: str) -> None:
    with suppress(ExpressionError):
        compile_expression(expression)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(["", "(", "publish"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["ttl", "authorizations", "topic", "channels", "permissions", "IDENTITY"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=20,
)


@given(values)
def test_any_answer_is_a_grant_or_refused(value: object) -> None:
    try:
        grant = parse_grant(json.dumps(value).encode())
    except GrantError:
        return
    assert grant.ttl_s > 0
