"""The kernels: for each kind what it computes, the slow code that is given, and code that is fast enough."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Kernel:
    """One kernel. `slow` and `fast` are bodies of `kernel(x, y, out, n, k)`, over the type `T`.

    Attributes:
        about: what out holds in the end.
        size, outs: elements of x and of y, and of out.
        span, scale: x and y hold multiples of 1 / scale between -span / scale and span / scale.
        helper: what stands before the fast function.
    """

    about: str
    slow: str
    fast: str
    n: int
    k: int = 0
    type: str = "double"
    size: int = 0
    outs: int = 0
    span: int = 4096
    scale: int = 64
    helper: str = ""


_TERMS = {"x[{}]": "x[{}]", "x[{0}] * x[{0}]": "the square of x[{}]", "(x[{0}] < 0 ? -x[{0}] : x[{0}])": "|x[{}]|"}
_SORT = """static int order(const void *a, const void *b) {
    T one = *(const T *)a, other = *(const T *)b;
    return (one > other) - (one < other);
}
static T *sorted(const T *from, long n) {
    T *s = malloc(n * sizeof(T));
    memcpy(s, from, n * sizeof(T));
    qsort(s, n, sizeof(T), order);
    return s;
}
static long below(const T *s, long n, T value, int equal) { /* how many are < value, or <= value */
    long low = 0, high = n;
    while (low < high) {
        long mid = (low + high) / 2;
        if (s[mid] < value || (equal && s[mid] == value)) low = mid + 1; else high = mid;
    }
    return low;
}
"""


def _term(rng: random.Random, index: str) -> tuple[str, str]:
    code = rng.choice([*_TERMS])
    return code.format(index), _TERMS[code].format(index)


def running(rng: random.Random) -> Kernel:
    (term, words), n = _term(rng, "j"), rng.randint(9000, 12000)
    if rng.random() < 0.5:
        slow = f"for (long i = 0; i < n; i++) {{ T s = 0; for (long j = 0; j <= i; j++) s += {term}; out[i] = s; }}"
        fast = f"T s = 0; for (long j = 0; j < n; j++) {{ s += {term}; out[j] = s; }}"
        return Kernel(f"out[i] is the sum of {words} over all j <= i", slow, fast, n, type=_number(rng))
    slow = f"for (long i = 0; i < n; i++) {{ T s = 0; for (long j = i; j < n; j++) s += {term}; out[i] = s; }}"
    fast = f"T s = 0; for (long j = n - 1; j >= 0; j--) {{ s += {term}; out[j] = s; }}"
    return Kernel(f"out[i] is the sum of {words} over all j >= i", slow, fast, n, type=_number(rng))


def _number(rng: random.Random) -> str:
    return rng.choice(["double", "long"])


def window(rng: random.Random) -> Kernel:
    (term, words), n, k = _term(rng, "j"), rng.randint(50_000, 70_000), rng.randint(700, 1000)
    slow = (
        f"for (long i = 0; i < n; i++) {{ T s = 0; for (long j = i < k ? 0 : i - k + 1; j <= i; j++) s += {term}; "
        "out[i] = s; }"
    )
    gone = term.replace("[j]", "[j - k]")
    fast = f"T s = 0; for (long j = 0; j < n; j++) {{ s += {term}; if (j >= k) s -= {gone}; out[j] = s; }}"
    return Kernel(f"out[i] is the sum of {words} over the last k of all j <= i", slow, fast, n, k, _number(rng))


def extreme(rng: random.Random) -> Kernel:
    sign, word = rng.choice([(">", "largest"), ("<", "smallest")])
    n, k = rng.randint(40_000, 60_000), rng.randint(800, 1200)
    slow = (
        "for (long i = 0; i < n; i++) { long j = i < k ? 0 : i - k + 1; T best = x[j]; "
        f"for (; j <= i; j++) if (x[j] {sign} best) best = x[j]; out[i] = best; }}"
    )
    fast = (
        "long *q = malloc(n * sizeof(long)), first = 0, last = 0;\n    for (long i = 0; i < n; i++) {\n"
        f"        while (last > first && !(x[q[last - 1]] {sign} x[i])) last--;\n        q[last++] = i;\n"
        "        if (q[first] + k <= i) first++;\n        out[i] = x[q[first]];\n    }\n    free(q);"
    )
    return Kernel(
        f"out[i] is the {word} x[j] of the last k of all j <= i", slow, fast, n, k, _number(rng), span=100_000
    )


def histogram(rng: random.Random) -> Kernel:
    n, k = rng.randint(80_000, 120_000), rng.randint(400, 700)
    slow = "for (long b = 0; b < k; b++) { out[b] = 0; for (long i = 0; i < n; i++) if (x[i] + k / 2 == b) out[b]++; }"
    fast = (
        "for (long b = 0; b < k; b++) out[b] = 0;\n"
        "    for (long i = 0; i < n; i++) { long b = x[i] + k / 2; if (b >= 0 && b < k) out[b]++; }"
    )
    about = "out[b] is how many i have x[i] + k / 2 == b, for b below k"
    return Kernel(about, slow, fast, n, k, "long", outs=k, span=k // 2 + 30, scale=1)


def ranks(rng: random.Random) -> Kernel:
    sign, word = rng.choice([("<", "smaller than"), ("<=", "at most")])
    slow = (
        "for (long i = 0; i < n; i++) { long c = 0; "
        f"for (long j = 0; j < n; j++) c += y[j] {sign} x[i]; out[i] = c; }}"
    )
    fast = (
        "T *s = sorted(y, n);\n"
        f"    for (long i = 0; i < n; i++) out[i] = below(s, n, x[i], {int(sign == '<=')});\n    free(s);"
    )
    about = f"out[i] is how many y[j] are {word} x[i]"
    return Kernel(about, slow, fast, rng.randint(8000, 11000), type=_number(rng), helper=_SORT)


def nearest(rng: random.Random) -> Kernel:
    slow = (
        "for (long i = 0; i < n; i++) { T best = x[i] < y[0] ? y[0] - x[i] : x[i] - y[0]; "
        "for (long j = 1; j < n; j++) { T d = x[i] < y[j] ? y[j] - x[i] : x[i] - y[j]; if (d < best) best = d; } "
        "out[i] = best; }"
    )
    fast = (
        "T *s = sorted(y, n);\n    for (long i = 0; i < n; i++) {\n        long j = below(s, n, x[i], 0);\n"
        "        T best = j < n ? s[j] - x[i] : x[i] - s[n - 1];\n"
        "        if (j > 0 && x[i] - s[j - 1] < best) best = x[i] - s[j - 1];\n        out[i] = best;\n"
        "    }\n    free(s);"
    )
    about = "out[i] is the distance between x[i] and the nearest of all y[j]"
    n = rng.randint(8000, 11000)
    return Kernel(about, slow, fast, n, type=_number(rng), helper=_SORT, span=100_000_000)


def distinct(rng: random.Random) -> Kernel:
    slow = (
        "out[0] = 0; for (long i = 0; i < n; i++) { long j = 0; while (j < i && x[j] != x[i]) j++; "
        "if (j == i) out[0]++; }"
    )
    fast = (
        "T *s = sorted(x, n);\n    out[0] = n > 0;\n    for (long i = 1; i < n; i++) out[0] += s[i] != s[i - 1];\n"
        "    free(s);"
    )
    about, n = "out[0] is how many different numbers x holds", rng.randint(10_000, 13_000)
    return Kernel(about, slow, fast, n, type=_number(rng), outs=1, helper=_SORT, span=rng.randint(20_000, 90_000))


def inversions(rng: random.Random) -> Kernel:
    slow = "long c = 0; for (long i = 0; i < n; i++) for (long j = i + 1; j < n; j++) c += x[i] > x[j]; out[0] = c;"
    helper = """static long merge(T *s, T *to, long n) {
    if (n < 2) return 0;
    long half = n / 2, i = 0, j = half, c = merge(s, to, half) + merge(s + half, to, n - half);
    for (long at = 0; at < n; at++)
        if (j == n || (i < half && !(s[i] > s[j]))) to[at] = s[i++]; else c += half - i, to[at] = s[j++];
    memcpy(s, to, n * sizeof(T));
    return c;
}
"""
    fast = (
        "T *s = malloc(2 * n * sizeof(T));\n    memcpy(s, x, n * sizeof(T));\n    out[0] = merge(s, s + n, n);\n"
        "    free(s);"
    )
    about = "out[0] is how many pairs i < j have x[i] > x[j]"
    return Kernel(about, slow, fast, rng.randint(11_000, 14_000), type=_number(rng), outs=1, helper=helper)


def matmul(rng: random.Random) -> Kernel:
    n = rng.choice([384, 448, 512])
    alpha = rng.randint(2, 9999)
    slow = (
        "for (long i = 0; i < n; i++) for (long j = 0; j < n; j++) { T s = 0; "
        f"for (long l = 0; l < n; l++) s += x[i * n + l] * y[l * n + j]; out[i * n + j] = {alpha} * s; }}"
    )
    fast = (
        "for (long i = 0; i < n; i += 2) for (long j = 0; j < n; j += 8) {\n"
        "        T s[16] = {0};\n"
        "        for (long l = 0; l < n; l++) {\n            T a = x[i * n + l], b = x[(i + 1) * n + l];\n"
        "            const T *v = y + l * n + j;\n"
        + "".join(f"            s[{c}] += a * v[{c}]; s[{c + 8}] += b * v[{c}];\n" for c in range(8))
        + "        }\n        for (long c = 0; c < 8; c++) "
        f"out[i * n + j + c] = {alpha} * s[c], out[(i + 1) * n + j + c] = {alpha} * s[c + 8];\n    }}"
    )
    about = f"x, y and out are n x n matrices, row by row; out is {alpha} times the matrix product of x and y"
    return Kernel(about, slow, fast, n, size=n * n, outs=n * n)


def normalise(rng: random.Random) -> Kernel:
    term, words = rng.choice([("x[j] * x[j]", "the squares of"), ("(x[j] < 0 ? -x[j] : x[j])", "the absolute")])
    slow = (
        f"for (long i = 0; i < n; i++) {{ T s = 1; for (long j = 0; j < n; j++) s += {term}; "
        "out[i] = (x[i] + y[i]) / s; }"
    )
    fast = (
        f"T s = 1; for (long j = 0; j < n; j++) s += {term};\n"
        "    for (long i = 0; i < n; i++) out[i] = (x[i] + y[i]) / s;"
    )
    about = f"out[i] is x[i] + y[i], divided by 1 plus the sum of {words} values of x"
    return Kernel(about, slow, fast, rng.randint(6000, 8000))


def layer_norm(rng: random.Random) -> Kernel:
    rows, k = rng.randint(40, 60), rng.randint(600, 800)
    mean = "T m = 0, v = 0; for (long j = 0; j < k; j++) m += r[j]; m /= k; "
    mean += "for (long j = 0; j < k; j++) v += (r[j] - m) * (r[j] - m); v = sqrt(v / k + 1e-5);"
    head = "for (long i = 0; i < n; i++) { const T *r = x + i * k; "
    slow = f"{head}for (long c = 0; c < k; c++) {{ {mean} out[i * k + c] = (r[c] - m) / v * y[c]; }} }}"
    fast = f"{head}{mean}\n        for (long c = 0; c < k; c++) out[i * k + c] = (r[c] - m) / v * y[c]; }}"
    about = (
        "x and out are n x k matrices, row by row; every row of out is that of x less its mean, divided by "
        "sqrt(its variance + 1e-5), and times y, element by element"
    )
    return Kernel(about, slow, fast, rows, k, size=rows * k, outs=rows * k)


def pairs(rng: random.Random) -> Kernel:
    kind, words, fast = rng.choice(
        [
            ("(x[i] - x[j]) * (x[i] - x[j])", "the square of x[i] - x[j]", "n * q - s * s"),
            ("x[i] * x[j]", "x[i] * x[j]", "(s * s - q) / 2"),
            ("(x[i] + x[j]) * (x[i] + x[j])", "the square of x[i] + x[j]", "(n - 2) * q + s * s"),
        ]
    )
    slow = f"T t = 0; for (long i = 0; i < n; i++) for (long j = i + 1; j < n; j++) t += {kind}; out[0] = t;"
    fast = f"T s = 0, q = 0; for (long i = 0; i < n; i++) s += x[i], q += x[i] * x[i]; out[0] = {fast};"
    about = f"out[0] is the sum of {words} over all pairs i < j"
    return Kernel(about, slow, fast, rng.randint(8000, 11000), outs=1, type=_number(rng), span=1000, scale=1)


def polynomial(rng: random.Random) -> Kernel:
    k = rng.randint(60, 90)
    slow = (
        "for (long i = 0; i < n; i++) { T s = 0; for (long j = 0; j < k; j++) { T p = y[j]; "
        "for (long l = 0; l < j; l++) p *= x[i]; s += p; } out[i] = s; }"
    )
    fast = (
        "for (long i = 0; i < n; i++) { T s = 0; for (long j = k - 1; j >= 0; j--) s = s * x[i] + y[j]; out[i] = s; }"
    )
    about = "out[i] is the sum of y[j] times the j-th power of x[i] over all j below k"
    return Kernel(about, slow, fast, rng.randint(9000, 12000), k, span=4096, scale=4096)


def blur(rng: random.Random) -> Kernel:
    n, k = rng.randint(280, 360), rng.randint(8, 11)
    slow = (
        "for (long i = 0; i < n; i++) for (long j = 0; j < n; j++) { T s = 0; "
        "for (long a = i - k; a <= i + k; a++) for (long b = j - k; b <= j + k; b++) "
        "if (a >= 0 && a < n && b >= 0 && b < n) s += x[a * n + b]; out[i * n + j] = s; }"
    )
    fast = (
        "T *p = calloc((n + 1) * (n + 1), sizeof(T));\n    long m = n + 1;\n"
        "    for (long i = 0; i < n; i++) for (long j = 0; j < n; j++)\n"
        "        p[(i + 1) * m + j + 1] = x[i * n + j] + p[i * m + j + 1] + p[(i + 1) * m + j] - p[i * m + j];\n"
        "    for (long i = 0; i < n; i++) for (long j = 0; j < n; j++) {\n"
        "        long t = i < k ? 0 : i - k, l = j < k ? 0 : j - k;\n"
        "        long d = i + k + 1 > n ? n : i + k + 1, r = j + k + 1 > n ? n : j + k + 1;\n"
        "        out[i * n + j] = p[d * m + r] - p[t * m + r] - p[d * m + l] + p[t * m + l];\n    }\n    free(p);"
    )
    about = (
        "x and out are n x n pictures, row by row; out[i, j] is the sum of all x[a, b] in the picture with "
        "|a - i| <= k and |b - j| <= k"
    )
    return Kernel(about, slow, fast, n, k, _number(rng), size=n * n, outs=n * n)


def divisors(rng: random.Random) -> Kernel:
    what, words = rng.choice([("1", "how many divisors i has"), ("d", "the sum of the divisors of i")])
    slow = (
        "out[0] = 0; for (long i = 1; i < n; i++) { long c = 0; "
        f"for (long d = 1; d <= i; d++) if (i % d == 0) c += {what}; out[i] = c; }}"
    )
    fast = (
        "for (long i = 0; i < n; i++) out[i] = 0;\n"
        f"    for (long d = 1; d < n; d++) for (long i = d; i < n; i += d) out[i] += {what};"
    )
    return Kernel(
        f"out[i] is {words}, for 0 < i < n, and out[0] is 0", slow, fast, rng.randint(3500, 5000), type="long"
    )


def recurrence(rng: random.Random) -> Kernel:
    a, b, p = rng.randint(3, 99), rng.randint(1, 99), rng.choice([9973, 10007, 65537, 99991])
    step = f"s = ({a} * s + {b} * j) % {p};"
    slow = f"for (long i = 0; i < n; i++) {{ long s = 1; for (long j = 0; j <= i; j++) {step} out[i] = s + x[i]; }}"
    fast = f"long s = 1; for (long j = 0; j < n; j++) {{ {step} out[j] = s + x[j]; }}"
    about = (
        f"with s = 1 at first, and s = ({a} * s + {b} * j) % {p} for j = 0, 1, ..., out[i] is x[i] plus the s of j = i"
    )
    return Kernel(about, slow, fast, rng.randint(3500, 5000), type="long")


KINDS: dict[str, Callable[[random.Random], Kernel]] = {
    each.__name__: each
    for each in (
        running, window, extreme, histogram, ranks, nearest, distinct, inversions, matmul, normalise, layer_norm,
        pairs, polynomial, blur, divisors, recurrence,
    )
}  # fmt: skip
