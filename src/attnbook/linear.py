"""The linear projection Y = X W + b, forwards and backwards. Chapter: :doc:`/chapters/02_gradients`."""

from typing import Any, Generic, NamedTuple

from attnbook.arguments import check_shape
from attnbook.arrays import agree, array_namespace, expected, mT, narrow, rows_of, widen
from attnbook.types import AnyArray, Array, described


@described
class LinearGrads(NamedTuple, Generic[Array]):
    """The gradients of :func:`.linear`, each with the shape of its variable."""

    dX: Array
    """(..., n, d_in), like X."""
    dW: Array
    """(d_in, d_out), like W: the sum over all rows of X."""
    db: Array | None
    """(d_out,): the sum of dY over all its rows. Leave it where there was no bias."""


def linear(X: Array, W: AnyArray, b: AnyArray | None = None) -> Array:
    """Project every row of X with the same matrix, and add the same bias.

    .. math:: Y = X\\,W + \\mathbf 1\\,b

    Equation :eq:`def-linear`.

    Parameters
    ----------
    X : array (..., n, d_in)
        One row a token.
    W : array (d_in, d_out)
        Used as ``X @ W``; ``torch.nn.Linear`` stores its transpose.
    b : array (d_out,), optional

    Returns
    -------
    Y : array (..., n, d_out), dtype of ``X``

    Raises
    ------
    TypeError
        X, W or b is no array of floats, or not of the dtype and library of X.
    ValueError
        W has not two axes, X not as many columns as W has rows, or b not one number a column of W.

    Notes
    -----
    Residuals for the backward: X and W.
    """
    agree(X=X, W=W, optional={"b": b})
    _check_shapes(X, W, b)
    return narrow(project(widen(X), widen(W), None if b is None else widen(b)), X.dtype)


def linear_vjp(dY: Array, X: Array, W: AnyArray) -> LinearGrads[Array]:
    """Pull a gradient back to the input, the weights and the bias.

    .. math:: dX = dY\\,W^{\\mathsf T} \\qquad dW = X^{\\mathsf T} dY \\qquad db = \\mathbf 1^{\\mathsf T} dY

    Equation :eq:`eq-linear-vjp`. W and b serve every row of every batch, so their gradients sum over all of these.

    Parameters
    ----------
    dY : array (..., n, d_out)
    X : array (..., n, d_in)
    W : array (d_in, d_out)

    Returns
    -------
    LinearGrads
        ``dX`` (..., n, d_in), ``dW`` (d_in, d_out), ``db`` (d_out,); leave ``db`` where there was no bias.

    Raises
    ------
    TypeError
        dY, X or W is no array of floats, or they differ in dtype or library.
    ValueError
        W has not two axes; or X does not fit W, or dY their product.
    """
    agree(dY=dY, X=X, W=W)
    _check_shapes(X, W, None)
    check_shape("dY", dY, (*X.shape[:-1], W.shape[1]))
    return LinearGrads(*(narrow(T, X.dtype) for T in project_vjp(widen(dY), widen(X), widen(W))))


def linear_jvp(tX: Array, tW: AnyArray, tb: AnyArray | None, X: Array, W: AnyArray) -> Array:
    """Push changes of input, weights and bias forward, all at once: the product rule.

    .. math:: \\dot Y = \\dot X\\,W + X\\,\\dot W + \\mathbf 1\\,\\dot b

    Equation :eq:`eq-linear-jvp`.

    Parameters
    ----------
    tX, tW, tb : arrays of the shapes of X, W and b
        Tangents; ``tb`` may be None.
    X, W : arrays (..., n, d_in), (d_in, d_out)

    Returns
    -------
    tY : array (..., n, d_out), dtype of ``X``

    Raises
    ------
    TypeError
        One of the arrays is none of floats, or unlike X in dtype or library.
    ValueError
        A tangent has not the shape of what moves along it, or X and W do not fit.
    """
    agree(X=X, W=W, tX=tX, tW=tW, optional={"tb": tb})
    _check_shapes(X, W, tb, bias_name="tb")
    for name, tangent, T in (("tX", tX, X), ("tW", tW, W)):
        check_shape(name, tangent, tuple(T.shape))
    tY = widen(tX) @ widen(W) + widen(X) @ widen(tW)  # eq-linear-jvp
    return narrow(tY if tb is None else tY + widen(tb), X.dtype)


def project(X: Any, W: Any, b: Any = None) -> Any:
    """:func:`.linear` on what has been checked and widened (:eq:`def-linear`); likewise ``project_vjp``."""
    return X @ W if b is None else X @ W + b  # def-linear


def project_vjp(dY: Any, X: Any, W: Any) -> tuple[Any, Any, Any]:
    """The gradients of X, W and b (:eq:`eq-linear-vjp`)."""
    dX = dY @ mT(W)  # eq-linear-vjp
    rows = rows_of(dY)
    dW = mT(rows_of(X)) @ rows  # eq-linear-vjp
    return dX, dW, array_namespace(rows).sum(rows, axis=0)


def _check_shapes(X: Any, W: Any, b: Any, bias_name: str = "b") -> None:
    if W.ndim != 2:
        raise ValueError(expected("W", "two axes (d_in, d_out)", f"shape {tuple(W.shape)}"))
    if X.ndim < 1 or X.shape[-1] != W.shape[0]:
        raise ValueError(expected("X", f"a last axis of {W.shape[0]}, the rows of W", f"shape {tuple(X.shape)}"))
    if b is not None and tuple(b.shape) != (W.shape[1],):
        raise ValueError(expected(bias_name, f"shape {(W.shape[1],)}, the columns of W", f"shape {tuple(b.shape)}"))
