"""The simulator's rewriting of CUDA C++: the parts that it changes, and that it changes no other."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from convlab.core.errors import BuildError
from convlab.sim.rewrite import rewrite

pytestmark = pytest.mark.pure

LAUNCH = re.compile(
    r"::sim::launch\(\"[^\"]*\", \[&\]\(auto f\) -> decltype\(f\((?P<name>.*?)\)\) "
    r"\{ return f\((?P=name)\); \}, "
    r"\[&\]\(auto&\.\.\. p\) \{ (?P<called>.*?)\(p\.\.\.\); \}, ::sim::config\((?P<config>.*?)\)\)"
    r"(?P<space>\s*)\((?P<arguments>.*)$",
    re.S,
)


def launch(text: str) -> tuple[str, str, str]:
    """Rewrite one launch inside a function; return its name, configuration and arguments."""
    result = rewrite(f"void f() {{ {text} }}")
    found = LAUNCH.search(result)
    assert found, result
    assert "".join(found["called"].split()) == "".join(found["name"].split())
    arguments = found["arguments"].rsplit(")", 1)[0]
    return found["name"], found["config"], arguments


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("k<<<1, 2>>>();", ("k", "1, 2", "")),
        ("k<<<1, 2>>>(a);", ("k", "1, 2", "a")),
        ("k <<< 1, 2 >>> (a, b);", ("k", " 1, 2 ", "a, b")),
        (
            "k<<<(n + 31) / 32, dim3(f(1), g(2, 3)), 4 * (a + b), stream>>>(h(x), (y));",
            ("k", "(n + 31) / 32, dim3(f(1), g(2, 3)), 4 * (a + b), stream", "h(x), (y)"),
        ),
        ("k<1, 2><<<g, b>>>(a);", ("k<1, 2>", "g, b", "a")),
        ("k<(a > b), c<d>><<<g, b>>>(a);", ("k<(a > b), c<d>>", "g, b", "a")),
        ("k<T, f(2), sizeof(int[3])><<<g, b>>>(a);", ("k<T, f(2), sizeof(int[3])>", "g, b", "a")),
        ("k<std::pair<A, B<C>>><<<g, b>>>(a);", ("k<std::pair<A, B<C>>>", "g, b", "a")),
        ("ns::k<<<g, b>>>(a);", ("ns::k", "g, b", "a")),
        ("::ns::k<<<g, b>>>(a);", ("::ns::k", "g, b", "a")),
        ("a :: b<1>::k<2><<<g, b>>>(a);", ("a :: b<1>::k<2>", "g, b", "a")),
        ("return k<<<g, b>>>(a);", ("k", "g, b", "a")),
        ("if (x > 1) k<<<g, b>>>(a);", ("k", "g, b", "a")),
        ("if (x) (*k)<<<g, b>>>(a);", ("(*k)", "g, b", "a")),
        ("table[i][1]<<<g, b>>>(a);", ("table[i][1]", "g, b", "a")),
        ("(x ? k1 : k2)<<<g, b>>>(a);", ("(x ? k1 : k2)", "g, b", "a")),
        ("(*table)[1]<<<g, b>>>(a);", ("(*table)[1]", "g, b", "a")),
        ("s.kernels[2]<<<g, b>>>(a);", ("s.kernels[2]", "g, b", "a")),
        ("p->kernel<<<g, b>>>(a);", ("p->kernel", "g, b", "a")),
        ("k<<<g, b>>>(p->x, \")\", ')', a /* ) */);", ("k", "g, b", "p->x, \")\", ')', a /* ) */")),
        ("k<<<a<b, c>(1), d->e, 1'000>>>(2'000);", ("k", "a<b, c>(1), d->e, 1'000", "2'000")),
        ("k<<<g, b, 0, s ? s : t>>>(a);", ("k", "g, b, 0, s ? s : t", "a")),
        ('cout << "a" << n; k << <g, b >> > (a);', ("k", "g, b ", "a")),
    ],
)
def test_launch(text, expected):
    assert launch(text) == expected


def test_launch_over_lines_keeps_each_line():
    source = (
        "void f() {\n  ns::k<1,\n    2>\n  <<<grid, // ends here: >>>\n"
        "  block>>>(\n x,\n y);\n g();\n}\n"
    )
    lines = rewrite(source).split("\n")
    assert len(lines) == source.count("\n") + 1
    assert lines[5:] == source.split("\n")[5:]
    assert lines[2].strip() == "2>" and lines[4] == "  block))("
    assert lines[3].startswith("  (p...); }, ::sim::config(grid, // ends here: >>>")


def test_several_launches_a_line_and_one_inside_another():
    text = rewrite("void f() { a<<<1, 2>>>(x); b<<<3, 4>>>(y, [] { c<<<5, 6>>>(); }); }")
    assert text.count("::sim::launch(") == 3 and text.count("::sim::config(") == 3
    assert "<<<" not in text and ">>>" not in text
    for config in ("1, 2", "3, 4", "5, 6"):
        assert f"::sim::config({config}))(" in text


def test_launch_in_a_macro_keeps_its_continuations():
    source = "#define GO(n) \\\n  k<n> \\\n  <<<1, n>>> \\\n  (x)\nvoid f() { GO(1); }\n"
    lines = rewrite(source).split("\n")
    assert [line.endswith("\\") for line in lines[:4]] == [True, True, True, False]
    assert lines[4] == "void f() { GO(1); }"


@pytest.mark.parametrize(
    "text",
    [
        "// k<<<1, 2>>>(a); __shared__ float s[3];\n",
        "/* k<<<1, 2>>>(a);\n __shared__ */\n",
        'const char* a = "k<<<1, 2>>>(a) \\" __shared__ float s[3];";\n',
        "int a = 1 << 2 >> 1, b = x < y, c = '<';\n",
        "__global__ void k(int* __shared__x, int my__shared__) {}\n",
        "#pragma unroll\nfor (;;) {}\n",
        "__attribute__((__noinline__)) void f();\n",
        "",
    ],
    ids=["line comment", "comment", "string", "shifts", "words", "pragma", "attribute", "empty"],
)
def test_untouched(text):
    assert rewrite(text) == text


def test_noinline():
    assert rewrite("__device__ __noinline__ float f();") == (
        "__device__ __attribute__((noinline)) float f();"
    )


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("<<<1, 2>>>(a);", "cannot read this launch"),
        ("k<<<1, 2>>;", "cannot read this launch"),
        ("k<<<1, 2>>> a;", "cannot read this launch"),
        ("k<<<1, 2;\n k<<<1, 2>>>(a);", "cannot read this launch"),
        ("__shared__ float s[2] = {1, 2};", "cannot read this __shared__ declaration"),
        ("__shared__ float x = 0;", "cannot read this __shared__ declaration"),
        ("__shared__ s;", "cannot read this __shared__ declaration"),
        ("__shared__ struct { int a; };", "cannot read this __shared__ declaration"),
        ("__shared__ union { int a; } s = {};", "cannot read this __shared__ declaration"),
        ("__shared__ class { int a; } s;", "cannot read this __shared__ declaration"),
        ("__shared__ float s[4]", "cannot read this __shared__ declaration"),
    ],
)
def test_unreadable_code_is_an_error_with_its_line(line, message):
    with pytest.raises(BuildError, match=rf"^mine\.cu:3: {message}"):
        rewrite(f"void f() {{\n\n{line}\n}}\n", "mine.cu")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("__shared__ float s[32];", "s is declared outside a function"),
        ("#define TILE __shared__ float", "cannot read this __shared__ declaration"),
        ("namespace a { __shared__ float s[32]; }", "s is declared outside a function"),
    ],
)
def test_shared_outside_a_function(line, message):
    with pytest.raises(BuildError, match=rf"^mine\.cu:2: .*{message}"):
        rewrite(f"\n{line}\nvoid f() {{ int i; }}\n", "mine.cu")


def shared(declaration: str) -> list[tuple[str, str]]:
    """(the array's typedef, its name) of each array that a declaration makes."""
    result = rewrite(f"void f() {{\n{declaration}\n}}\n")
    assert "__shared__" not in result and result.count("\n") == declaration.count("\n") + 3
    return re.findall(r"typedef (.*?); (?:static char \w+; )?\w+[&*] (\w+) =", result)


@pytest.mark.parametrize(
    ("declaration", "expected"),
    [
        ("__shared__ float s;", [("float sim_s_t", "s")]),
        ("__shared__ float s[32];", [("float sim_s_t[32]", "s")]),
        ("__shared__ float s[N][M + 1];", [("float sim_s_t[N][M + 1]", "s")]),
        ("__shared__ float s [ 2 ] [3] ;", [("float sim_s_t[ 2 ] [3]", "s")]),
        (
            "__shared__ float a[2], b, c[3][4];",
            [("float sim_a_t[2]", "a"), ("float sim_b_t", "b"), ("float sim_c_t[3][4]", "c")],
        ),
        (
            "__shared__ float *p, q[2], **r;",
            [("float* sim_p_t", "p"), ("float sim_q_t[2]", "q"), ("float** sim_r_t", "r")],
        ),
        ("__shared__ unsigned long long s[2];", [("unsigned long long sim_s_t[2]", "s")]),
        ("volatile __shared__ int s[2];", [("volatile int sim_s_t[2]", "s")]),
        ("__shared__ volatile int s[2];", [("volatile int sim_s_t[2]", "s")]),
        ("static __shared__ int s[2];", [("int sim_s_t[2]", "s")]),
        ("__shared__ static int s[2];", [("int sim_s_t[2]", "s")]),
        ("__shared__ __align__(16) float s[2];", [("float sim_s_t[2]", "s")]),
        ("__shared__ alignas(sizeof(float4)) float s[2];", [("float sim_s_t[2]", "s")]),
        ("alignas(16) __shared__ float s[2];", [("float sim_s_t[2]", "s")]),
        ("__align__(16) static __shared__ float s[2];", [("float sim_s_t[2]", "s")]),
        ("__shared__ float __align__(8) s[2];", [("float sim_s_t[2]", "s")]),
        ("__shared__ struct Cell s[2];", [("struct Cell sim_s_t[2]", "s")]),
        (
            "__shared__ typename A<T>::type s[sizeof(T) > 4 ? 2 : 1], t[2];",
            [
                ("typename A<T>::type sim_s_t[sizeof(T) > 4 ? 2 : 1]", "s"),
                ("typename A<T>::type sim_t_t[2]", "t"),
            ],
        ),
        (
            "__shared__ std::array<float, 3> s[f(1, 2)];",
            [("std::array<float, 3> sim_s_t[f(1, 2)]", "s")],
        ),
        ("__shared__\n  float // a comment, with a comma\n  s[32];", [("float sim_s_t[32]", "s")]),
        ("extern __shared__ float s[];", [("float sim_s_t", "s")]),
        ("extern __shared__ float4 s[];", [("float4 sim_s_t", "s")]),
        ("__shared__ extern float s[];", [("float sim_s_t", "s")]),
        ("extern __shared__ __align__(16) unsigned char s[];", [("unsigned char sim_s_t", "s")]),
        ("extern volatile __shared__ float s[];", [("volatile float sim_s_t", "s")]),
        ("extern __shared__ float s[][32];", [("float sim_s_t[32]", "s")]),
    ],
)
def test_shared(declaration, expected):
    assert shared(declaration) == expected


@pytest.mark.parametrize(
    ("declaration", "names", "use"),
    [
        ("__device__ float t[4];", "t", 2),
        ("static __constant__ alignas(16) float t[N * (M + 1)] = {f(1), 2}", "t", 4),
        ("__device__ __managed__ unsigned int count", "count", 3),
        ("__device__ volatile ns::Two<int, 3> a{1, {2}}", "a", 2),
        ("__constant__ int *p, q[2][3]", "p q", 4),
        ("__device__ const float t[2] = {1, 2}", "", 0),
        ("__device__ float f(float x)", "", 0),
        ("template <int n> __device__ float t[n]", "", 0),
        ("extern __device__ float t[]", "", 0),
        ("__constant__ struct { int a; } c", "", 0),
        ("#define TABLE __device__ int t[4]", "", 0),
        ("void f() { static __device__ int t[4]; }", "", 0),
    ],
)
def test_variables_of_a_file(declaration, names, use):
    """Each becomes what it holds at first, and a reference to where it is watched."""
    expected = declaration = declaration.rstrip(";") + ";"
    for name in names.split():
        expected = re.sub(rf"\b{name}\b", f"sim_{name}_image", expected)
        expected += f' static auto& {name} = ::sim::variable("{name}", sim_{name}_image, {use});'
    for before, after in ("\n", "\n"), ("namespace {\n", "\n}"), ("int a() {}\n", "\nint b;"):
        assert rewrite(before + declaration + after) == before + expected + after


@pytest.mark.parametrize(
    ("declaration", "type", "variables"),
    [
        ("__shared__ union U { struct { float x[2]; } a; int b; } s;", "union U", [("U sim_s_t", "s")]),
        ("__shared__ __align__(16) struct U { int a; } s[2], t;", "struct U", [("U sim_s_t[2]", "s"), ("U sim_t_t", "t")]),
        ("__align__(16) static __shared__ struct U\n{\nint a;\n}\ns;", "struct U", [("U sim_s_t", "s")]),
        ("volatile __shared__ union U { int a; } s;", "union U", [("volatile U sim_s_t", "s")]),
        ("__shared__ struct { int a; } s;", "struct", [("sim_type_11 sim_s_t", "s")]),
        ("__shared__ struct alignas(16) { int a; } s;", "struct", [("sim_type_11 sim_s_t", "s")]),
    ],
)
def test_a_type_that_a_shared_declaration_defines_comes_first(declaration, type, variables):
    text = rewrite(f"void f() {{ {declaration} }}")
    assert "__shared__" not in text and text.count("\n") == declaration.count("\n")
    assert text.index(type) < text.index("}") < text.index("typedef")
    for alias, name in variables:
        assert f"typedef {alias}; static char sim_{name}_key; sim_{name}_t& {name} = " in text


@pytest.mark.parametrize("inside", ["{0}", "namespace a {{ {0} }}", 'extern "C" {{ {0} }}'])
def test_extern_shared_at_file_scope(inside):
    text = rewrite(inside.format("extern __shared__ float s[];"))
    assert 'extern __thread sim_s_t* const s asm("sim_dynamic_array");' in text
    method = rewrite("struct S { __device__ void f() { extern __shared__ float s[]; } };")
    assert "sim_dynamic_shared()" in method


# --- properties ----------------------------------------------------------------------------------

PLAIN = st.sampled_from(
    [
        "",
        "  int i = 0;",
        "// a note: k<<<1, 2>>>(x)",
        "/* k<<< */ { }",
        'puts("a \\" // __shared__ b");',
        "a = b >> c << d;",
        "#pragma unroll 4",
        "char c = '\\'';",
    ]
)
CHANGED = st.sampled_from(
    [
        "k<<<1, 2>>>(x);",
        "a::k<1, 2><<<g, b, 0, s>>>(x, f(y)); k<<<1, 2>>>();",
        "k<<<1,\n   2>>>(x,\n   y);",
        "k\n<<<1, 2>>>\n(x);",
        "__shared__ float s[3], t[4];",
        "extern __shared__ float4 s[];",
        "__shared__\nfloat\n  s[3];",
        "__noinline__ int f();",
    ]
)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.one_of(st.tuples(PLAIN, st.just(False)), st.tuples(CHANGED, st.just(True)))))
def test_lines_stay_where_they_are(pieces):
    """Each piece begins on the line on which it began, and plain pieces are as they were."""
    source = "\n".join(["void f() {", *(text for text, _ in pieces), "}"])
    before = source.split("\n")
    after = rewrite(source).split("\n")
    assert len(before) == len(after)
    line = 1
    for text, changed in pieces:
        many = text.count("\n") + 1
        assert changed == (after[line : line + many] != before[line : line + many])
        line += many


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet="abk<>(){};, \n/*\"'_:=", max_size=80))
def test_any_text_is_rewritten_or_refused(text):
    try:
        result = rewrite(text)
    except BuildError as error:
        assert re.match(r"kernel:\d+: ", str(error))
    else:
        assert result.count("\n") == text.count("\n")
        if "<<<" not in text:
            assert result == text


STRUCT = "struct T { int a; }; T f(int i) { return {i}; } float g() { return 1; }\n"


@pytest.mark.parametrize(
    "statement, is_stored",
    [
        ("s[i] = f(2);", True),
        ("p->member = f(g());", True),
        ("*p = f(2);", True),
        ("if (i) s[i].t = f(2);", True),
        ("for (;;) s[f(1).a] = f(2);", True),
        ("T& r = s[0]; r = f(1);", True),
        ("\n#if 1\ns[i] = f(2);\n#endif\n", True),
        ("reinterpret_cast<T*>(p)[i] = f(2);", True),
        ("*(T*)p = f(2);", True),
        ("auto make = [&](int k) -> T { return {k}; }; s[i] = make(2);", True),
        ("T t = f(2);", False),
        ("T t; t = f(2);", False),
        ("s[i] = g();", False),
        ("s[i] == f(2);", False),
        ("s[i] = T{1};", False),
        ("s[i] = f(2), i = 3;", False),
        ("#define PUT s[i] = f(2);\n", False),
        ("bool b = i <= 3 && f(2).a >= 1;", False),
    ],
)
def test_a_struct_that_a_call_returns_is_stored_by_an_assignment(
    statement: str, is_stored: bool
) -> None:
    text = f"{STRUCT}void h() {{\n{statement}\n}}"
    result = rewrite(text)
    assert ("sim_value" in result) == is_stored
    assert result.count("\n") == text.count("\n")
    if not is_stored:
        assert result == text


@pytest.mark.parametrize(
    "text",
    [
        "void h() { __shared__ T s_one; s_one = f(2); }",
        "__device__ T d_one;\nvoid h() { d_one = f(2); }",
        "void h(T& out) { out = f(2); }",
    ],
    ids=["shared", "device", "parameter"],
)
def test_a_reference_without_an_index_is_stored_by_an_assignment(text: str) -> None:
    assert "sim_value" in rewrite(STRUCT + text)


def test_operators_and_functions_of_headers_return_structs_too() -> None:
    text = "T operator+(T a, T b) { return a; }\nvoid h() { s[i] = s[i] + t; n[i] = n[i]; }"
    assert rewrite(text).count("sim_value") == 2
    assert "sim_value" in rewrite("void h() { s[i] = f(1); }", functions={"f"})


@pytest.mark.pure
@pytest.mark.parametrize(
    ("name", "whole"),
    [
        ("k<float, 8>", True),
        ("k<float>", False),
        ("k", False),
        ("other<1>", False),
        ("s::k<T, f(1, 2)>", True),
    ],
)
def test_a_launch_names_its_type_only_where_arguments_decide_it(name, whole):
    # g++ 12 crashes if a constant of the calling function is in that type, within two lambdas.
    source = "template <typename T, int B>\n__global__ void k(T* x) { x[0] = B; }\n"
    text = rewrite(f"{source}void f(float* x) {{ {name}<<<1, 1>>>(x); }}")
    assert ("-> decltype" in text) is not whole
