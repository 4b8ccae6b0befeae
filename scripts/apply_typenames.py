#!/usr/bin/env python3
"""Rename types, functions, modules, constants and fields of the Rust code.

Reads TSV lines `scope<TAB>old<TAB>new<TAB>kind` (kind: type|fn|mod|const|field, or variant with
`Enum::Variant` as the old name) and
`mv<TAB>oldpath<TAB>newpath`. A scope is a folder, a file or `*`.

    apply_typenames.py [--dry-run] [--root DIR] [--map FILE] [--no-fmt] [-v]
"""
import argparse
import collections
import os
import re
import subprocess
import sys

CODE = ["src", "bench", "benches", "tests", "examples", "fuzz"]
PAGES = ["docs", "CONTRIBUTING.md", "README.md", "CHANGELOG.md"]
OTHERS = [".ci", "Cargo.toml", "packaging", "ops"]  # only paths of moved files
# A path that passes one of these names something of another crate or of the generated code.
FOREIGN = set(
    """pb prost prost_types prost_reflect tonic std core alloc serde serde_json redb tantivy tokio
    hyper axum rmcp rustls http bytes tracing opentelemetry opentelemetry_sdk opentelemetry_proto
    clap proptest uuid blake3 object_store moka schemars jsonschema rusqlite fjall reqwest tower
    otlp metrics_v1 io toml_edit oneshot mpsc watch broadcast http_body_util
    server_reflection_request server_reflection_response tonic_reflection""".split()
)
TOKEN = re.compile(
    r"""(?P<line>//[^\n]*)
  | (?P<block>/\*)
  | (?P<raw>(?:b|c)?r(?P<hash>\#*)")
  | (?P<str>(?:b|c)?"(?:[^"\\]|\\.)*")
  | (?P<char>b?'(?:[^'\\\n]|\\(?:x[0-9a-fA-F]{2}|u\{[^}]*\}|.))')
  | (?P<life>'[A-Za-z_]\w*)
  | (?P<id>(?:r\#)?[A-Za-z_]\w*)
  | (?P<num>\d[\w.]*?(?=\.\.|[^\w.]|$)|\d\w*)
  | (?P<ws>\s+)
  | (?P<p>::|->|=>|\.\.=|\.\.|[^\s\w])
""",
    re.X | re.S,
)


def lex(text):
    """Tokens as [kind, text]; the texts together are the input."""
    out, i, n = [], 0, len(text)
    while i < n:
        m = TOKEN.match(text, i)
        if not m:
            out.append(["p", text[i]])
            i += 1
            continue
        kind = m.lastgroup if m.lastgroup != "hash" else "raw"
        if m.group("raw") is not None:
            kind = "raw"
        if kind == "block":
            depth, j = 1, m.end()
            while j < n and depth:
                if text.startswith("/*", j):
                    depth, j = depth + 1, j + 2
                elif text.startswith("*/", j):
                    depth, j = depth - 1, j + 2
                else:
                    j += 1
            out.append(["block", text[i:j]])
            i = j
            continue
        if kind == "raw":
            end = '"' + m.group("hash")
            j = text.find(end, m.end())
            j = n if j < 0 else j + len(end)
            out.append(["raw", text[i:j]])
            i = j
            continue
        out.append([kind, m.group(0)])
        i = m.end()
    return out


# Modules that are foreign wherever they stand in a path.
INNER = set("pb oneshot mpsc watch broadcast server_reflection_request server_reflection_response metrics_v1".split())


def foreign(path):
    return bool(path) and (path[0] in FOREIGN or bool(set(path) & INNER))


def upper(word):
    return word[:1].isupper() and not word.isupper() or word == "Self"


class Context:
    """For each identifier of a token list: what stands around it."""

    def __init__(self, tokens):
        self.tokens = tokens
        self.sig = [i for i, t in enumerate(tokens) if t[0] not in ("ws", "line", "block")]
        self.where = {}
        self._walk()

    def text(self, k):
        if 0 <= k < len(self.sig):
            return self.tokens[self.sig[k]][1]
        return ""

    def _walk(self):
        # One pass: enum bodies (position of variants), use trees (their prefix), attributes.
        stack = []  # of [opener, kind, state]
        pending, enum = None, ""  # an enum that waits for its brace
        use = None  # stack of path segments lists while in a use item
        n = len(self.sig)
        k = 0
        attr = 0
        self_type = ""  # of the `impl` that a token is in
        while k < n:
            t = self.text(k)
            kind = self.tokens[self.sig[k]][0]
            info = {"variant": False, "path": [], "use": False, "attr": attr > 0}
            if kind == "id" and t == "impl" and self.text(k - 1) in ("", "}", ";", "]", "unsafe"):
                head, e = [], k + 1
                while e < n and self.text(e) not in ("{", ";", "where"):
                    head.append(self.text(e))
                    e += 1
                if "for" in head:
                    head = head[len(head) - head[::-1].index("for"):]
                elif head[:1] == ["<"]:
                    depth = 0
                    for x, h in enumerate(head):
                        depth += (h == "<") - (h == ">")
                        if not depth:
                            head = head[x + 1:]
                            break
                names = [h for h in head if h[:1].isupper()]
                self_type = names[0] if names else ""
            info["self"] = self_type
            if t == "#" and self.text(k + 1) in ("[",) or (t == "#" and self.text(k + 1) == "!" and self.text(k + 2) == "["):
                j = k + (1 if self.text(k + 1) == "[" else 2)
                depth, e = 0, j
                while e < n:
                    if self.text(e) == "[":
                        depth += 1
                    elif self.text(e) == "]":
                        depth -= 1
                        if not depth:
                            break
                    e += 1
                for x in range(k, min(e + 1, n)):
                    path = []
                    y = x
                    while self.text(y - 1) == "::" and self.tokens[self.sig[y - 2]][0] == "id":
                        path.insert(0, self.text(y - 2))
                        y -= 2
                    self.where[x] = {"variant": False, "path": path, "use": False, "attr": True}
                k = e + 1
                continue
            if kind == "id" and t == "use" and use is None and self.text(k - 1) in ("", ";", "}", "{", ")", "]", "pub"):
                use = [[]]
                self.where[k] = info
                k += 1
                continue
            if use is not None:
                info["use"] = True
                if kind == "id":
                    info["path"] = list(use[-1])
                    if self.text(k + 1) == "::":
                        use[-1] = use[-1] + [t]
                elif t == "{":
                    use.append(list(use[-1]))
                elif t == "}":
                    use.pop()
                elif t == ",":
                    use[-1] = list(use[-2]) if len(use) > 1 else []
                elif t == ";":
                    use = None
                self.where[k] = info
                k += 1
                continue
            if kind == "id":
                path = []
                y = k
                while self.text(y - 1) == "::":
                    p = self.text(y - 2)
                    if y - 2 >= 0 and self.tokens[self.sig[y - 2]][0] == "id":
                        path.insert(0, p)
                        y -= 2
                    else:
                        path.insert(0, p)  # `>` of a generic or qualified path
                        break
                info["path"] = path
                if t == "enum" and k + 1 < n and self.tokens[self.sig[k + 1]][0] == "id":
                    pending = "enum"
                    enum = self.text(k + 1)
                if stack and stack[-1][1] == "enum" and stack[-1][2]:
                    info["variant"] = True
                    info["enum"] = stack[-1][3]
                    stack[-1][2] = False
            if t in ("{", "(", "["):
                stack.append([t, pending if t == "{" and pending else "", True, enum])
                if t == "{":
                    pending = None
            elif t in ("}", ")", "]"):
                if stack:
                    stack.pop()
            elif t == "," and stack and stack[-1][1] == "enum":
                stack[-1][2] = True
            elif t == ";":
                pending = None
            self.where[k] = info
            k += 1


COMBINATORS = set(
    """map filter and_then map_err for_each flat_map filter_map is_some_and is_none_or is_ok_and any
    all or_else unwrap_or_else map_or then find position sort_by sort_by_key sort_unstable_by_key
    partition take_while skip_while fold try_fold inspect max_by_key min_by_key map_or_else
    map_while find_map retain contains trim_matches split dedup_by_key from_fn route get post
    value_parser default_value_t min_by max_by""".split()
)


def binds(text, name):
    n = re.escape(name)
    pats = [
        rf"\blet\s+(?:mut\s+)?{n}\b",
        rf"\|[^|\n]*\b{n}\b[^|\n]*\|",
        rf"(?<!:)\b{n}\s*:(?!:)",
        rf"\bfor\s+[^{{;]*\b{n}\b[^{{;]*\bin\b",
        rf"\b[A-Z]\w*\s*\((?:[^()\n]*,\s*)?(?:mut |ref |&)?{n}\s*(?:,[^()\n]*)?\)\s*(?:=[^=]|=>|\||if)",
        rf"\blet\s+(?:[A-Z]\w*\s*)?\([^)\n]*\b{n}\b",
        rf"\{{[^{{}}\n]*\b{n}\b[^{{}}\n]*\}}\s*(?:=[^=]|=>)",
        rf"\({n}\s*,[^()\n]*\)\s*=>|,\s*{n}\)\s*=>",
    ]
    return any(re.search(p, text) for p in pats)


def matches(ctx, k, old, kind, bound, foreign_ok=False):
    """Whether the identifier at significant position k is one to be renamed."""
    info = ctx.where.get(k, {"variant": False, "path": [], "use": False, "attr": False})
    prev, nxt = ctx.text(k - 1), ctx.text(k + 1)
    path = info["path"]
    if foreign(path):
        return False
    if kind == "type":
        if info["variant"]:
            return False
        if path and (upper(path[-1]) or path[-1] == ">"):
            return False
        if prev == ".":
            return False
        return True
    if kind == "const":
        return not info["variant"]
    if kind == "mod":
        if prev == "mod":
            return True
        if prev == ".":
            return False
        if path and upper(path[-1]):
            return False
        if nxt == "::":
            return ctx.text(k + 2) != "<"
        if info["use"]:
            if path and path[-1] == old:
                return False  # a function of the same name in the module
            return nxt in (",", "}", ";", "as")
        return False
    if kind == "fn":
        if prev == "fn":
            return True
        if prev == "mod":
            return False
        if info["use"]:
            return nxt in (",", "}", ";", "as")
        if nxt == "::":
            return ctx.text(k + 2) == "<"
        if nxt == "!":
            return False
        if nxt == "(":
            # A call of a local closure is no call of the function.
            return prev == "." or bool(path) or "call" not in bound
        if prev == ".":
            return False
        if path:
            return True
        if prev == "(" and nxt == ")" and ctx.text(k - 2) in COMBINATORS:
            return "bare" not in bound or True
        if nxt == ":" or prev in ("let", "mut", "ref"):
            return False
        return "bare" not in bound
    if kind == "variant":
        # `old` is the name of the variant; `bound` the names of its enum, old and new
        if info["variant"]:
            return info.get("enum") in bound
        return bool(path) and path[-1] in bound
    if kind == "field":
        if info["use"]:
            return False
        if nxt in ("(", "::") or prev in ("::", "fn", "mod"):
            # a call; but `self.x(…)` of a field that is a function is written `(self.x)(…)`
            return False
        return True
    raise SystemExit(f"unknown kind {kind}")


def imported(ctx, name):
    """Whether a `use` brings this name from another crate or from the generated code."""
    for k, info in ctx.where.items():
        if info["use"] and ctx.text(k) == name and foreign(info["path"]) and ctx.text(k + 1) != "as":
            return True
    return False


def closure(text, name):
    n = re.escape(name)
    return bool(re.search(rf"\blet\s+(?:mut\s+)?{n}\s*(?::[^=\n]*)?=\s*(?:async\s+)?(?:move\s+)?\|", text)
                or re.search(rf"\b{n}\s*:\s*(?:&(?:mut\s+)?)?(?:impl|dyn|&mut|&)\s*(?:mut\s+|dyn\s+|impl\s+)?Fn", text))


def rename_tokens(text, table, fulltext=None, count=None, comment=None, prose=False):
    """Apply {old: [(new, kind, line)]} to code; comments by `comment`."""
    tokens = lex(text)
    ctx = Context(tokens)
    bound = {}
    fulltext = fulltext if fulltext is not None else text
    for k, i in enumerate(ctx.sig):
        t = tokens[i]
        if t[0] == "id":
            rules = table.get(t[1])
            if not rules:
                continue
            for new, kind, line in rules:
                if kind == "fn" and t[1] not in bound:
                    b = {"bare"} if prose else set()
                    if binds(fulltext, t[1]):
                        b.add("bare")
                    if closure(fulltext, t[1]):
                        b.add("call")
                    bound[t[1]] = b
                if kind == "type" and ("import", t[1]) not in bound:
                    bound["import", t[1]] = imported(ctx, t[1])
                if kind == "type" and bound["import", t[1]]:
                    continue
                if kind.startswith("variant "):
                    names = kind.split()[1:]
                    if ctx.where.get(k, {}).get("self") in names:
                        names.append("Self")
                    hit = matches(ctx, k, t[1], "variant", names)
                elif kind.startswith(("type ", "fn ")):
                    hit = (ctx.where.get(k, {}).get("path") or [""])[-1] == kind.split()[1]
                elif kind.startswith("mod "):
                    behind = set(ctx.where.get(k, {}).get("path", ())) & set(kind.split()[1:])
                    if ("used", t[1]) not in bound:
                        bound["used", t[1]] = any(
                            i["use"] and (ctx.text(x) == t[1] and ctx.text(x + 1) in (",", "}", ";")
                                          or ctx.text(x) == "self" and i["path"][-1:] == [t[1]])
                            and set(i["path"]) & set(kind.split()[1:])
                            for x, i in ctx.where.items()
                        )
                    hit = (behind or bound["used", t[1]]) and matches(ctx, k, t[1], "mod", ())
                else:
                    hit = matches(ctx, k, t[1], kind, bound.get(t[1], ()))
                if hit:
                    tokens[i] = ["id", new]
                    if count is not None:
                        count[line] += 1
                    break
        elif t[0] in ("str", "raw"):
            attr = ctx.where.get(k, {}).get("attr")
            if attr and re.fullmatch(r'"[\w:]+"', t[1]) and "::" in t[1] or (
                attr and ctx.text(k - 1) == "=" and ctx.text(k - 2) in ("default", "with", "serialize_with", "deserialize_with", "skip_serializing_if")
            ):
                parts = t[1].strip('"').split("::")
                for x, part in enumerate(parts):
                    last = x == len(parts) - 1
                    for new, kind, line in table.get(part, ()):
                        if (kind in ("fn",) and last) or (kind == "mod" and (not last or "with" in ctx.text(k - 2))) or kind == "type":
                            parts[x] = new
                            if count is not None:
                                count[line] += 1
                            break
                tokens[i] = [t[0], '"' + "::".join(parts) + '"']
            elif "{" in t[1]:
                def captured(m):
                    for new, kind, line in table.get(m.group(1), ()):
                        if kind in ("field", "const"):
                            return "{" + new + m.group(2)
                    return m.group(0)
                if any(r[1] in ("field", "const") for rs in table.values() for r in rs):
                    tokens[i] = [t[0], re.sub(r"(?<!\{)\{([A-Za-z_]\w*)([:}])", captured, t[1])]
    if comment:
        fence = False
        for i, t in enumerate(tokens):
            if t[0] == "line":
                tokens[i], fence = ["line", (r := comment(t[1], fence))[0]], r[1]
            elif t[0] == "block":
                tokens[i] = ["block", comment(t[1], False)[0]]
            elif t[0] not in ("ws",):
                fence = False
    return "".join(t[1] for t in tokens)


PATHCHARS = re.compile(r"[A-Za-z_][\w]*")


def rename_span(span, table, count, modules=False):
    """A code span of a comment or a page: identifiers, with the same rules where they can hold."""
    if not any(w in table for w in PATHCHARS.findall(span)):
        return span
    if re.fullmatch(r"[a-z_]\w*", span):
        # A bare lower-case word may be a field, a parameter, a command: only functions that are
        # written as such, and modules with a path, are meant for sure.
        for new, kind, line in table.get(span, ()):
            if kind == "field" or kind == "mod" and modules:
                return new
        return span
    if "/" in span or span.endswith((".rs", ".md", ".redb")) or " " in span and not re.search(r"[(:<&]", span):
        return span
    if span.startswith("-"):
        return span  # an option
    return rename_tokens(span, table, "", count, prose=True)


def comment_renamer(table, count):
    def line(text, fence):
        m = re.match(r"(//[/!]?\s?)(.*)$", text, re.S)
        if m and text.startswith(("///", "//!")):
            body = m.group(2)
            if body.strip().startswith("```"):
                return text, not fence
            if fence:
                return m.group(1) + rename_tokens(body, table, "", count), True
        else:
            fence = False
        return spans(text, table, count, text.startswith("//!")), fence

    return line


def spans(text, table, count, modules=False):
    text = re.sub(r"`([^`\n]+)`", lambda m: "`" + rename_span(m.group(1), table, count, modules) + "`", text)
    # Targets of links: [`x`](super::Type::method)
    text = re.sub(
        r"\]\(([A-Za-z_][\w:]*(?:\(\))?)\)",
        lambda m: "](" + (rename_tokens(m.group(1), table, "", count, prose=True) if "::" in m.group(1) or m.group(1)[:1].isupper() or m.group(1).endswith("()") else m.group(1)) + ")",
        text,
    )
    return text


def rust_files(root):
    for top in CODE:
        for folder, names, files in os.walk(os.path.join(root, top)):
            names[:] = [x for x in names if x not in ("target", ".git", "corpus", "node_modules")]
            for f in sorted(files):
                if f.endswith(".rs"):
                    yield os.path.relpath(os.path.join(folder, f), root)


def page_files(root):
    for top in PAGES:
        p = os.path.join(root, top)
        if os.path.isfile(p):
            yield top
        for folder, _, files in os.walk(p):
            for f in sorted(files):
                if f.endswith(".md"):
                    yield os.path.relpath(os.path.join(folder, f), root)


def other_files(root):
    for top in OTHERS:
        p = os.path.join(root, top)
        if os.path.isfile(p):
            yield top
        for folder, names, files in os.walk(p):
            names[:] = [x for x in names if x not in ("target", ".git", "node_modules")]
            for f in sorted(files):
                yield os.path.relpath(os.path.join(folder, f), root)
    for folder, names, files in os.walk(os.path.join(root, "src")):
        for f in files:
            if f == "Cargo.toml":
                yield os.path.relpath(os.path.join(folder, f), root)


def in_scope(path, scope):
    if scope == "*":
        return True
    if path == scope or path.startswith(scope.rstrip("/") + "/"):
        return True
    return path == scope + ".rs"


def candidates(scope, files, exists):
    """Where a scope is now: itself, or what was moved to another crate under the same name."""
    if scope == "*":
        return [scope]
    found = []
    if exists(scope) or exists(scope + ".rs"):
        found.append(scope)
    # The heuristics of src/context are being moved to src/digest.
    if scope == "src/context" or scope.startswith("src/context/"):
        other = "src/digest" + scope[len("src/context"):]
        if exists(other) or exists(other + ".rs"):
            found.append(other)
        base = os.path.basename(scope)
        if scope.endswith(".rs") and base not in ("lib.rs", "mod.rs"):
            moved = [f for f in files if f.startswith("src/digest/") and os.path.basename(f) == base]
            if len(moved) == 1 and moved[0] not in found:
                found.append(moved[0])
    if found:
        return found
    parts = scope.split("/")
    if parts[0] != "src" or len(parts) < 3:
        return []
    homes = ["src/digest/", "src/context/", "src/provider_check/"] if parts[1] == "context" else [f"src/{parts[1]}/", "src/"]
    for home in homes:
        for cut in range(2, len(parts)):
            tail = "/".join(parts[cut:])
            hits = set()
            for f in files:
                if not f.startswith(home):
                    continue
                if scope.endswith(".rs"):
                    if f.endswith("/" + tail):
                        hits.add(f)
                else:
                    m = re.match(r"(src/(?:.*/)?" + re.escape(tail) + r")(?:/|\.rs$)", f)
                    if m:
                        hits.add(m.group(1))
            # Outside of its crate only by more than the name of the file.
            if len(hits) == 1 and (home != "src/" or len(parts) - cut >= 2):
                return list(hits)
    return []


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--dry-run", action="store_true")
    ap.add_argument("--root", default=".")
    ap.add_argument("--map", default="scripts/typenames.tsv")
    ap.add_argument("--no-fmt", action="store_true")
    ap.add_argument("-v", action="store_true")
    args = ap.parse_args()
    root = args.root
    lines, moves = [], []
    for number, raw in enumerate(open(args.map), 1):
        raw = raw.rstrip("\n")
        if not raw or raw.startswith("#"):
            continue
        f = raw.split("\t")
        if f[0] == "mv":
            moves.append((f[1], f[2]))
        elif len(f) == 4 and f[3] == "variant":
            enum, variant = f[1].split("::")
            lines.append((f[0], variant, f[2], f"variant {enum}", number))
        elif len(f) == 4 and f[3] in ("type", "fn") and "::" in f[1]:
            before, name = f[1].split("::")  # only behind this part of a path
            lines.append((f[0], name, f[2], f"{f[3]} {before}", number))
        elif len(f) == 4:
            lines.append((f[0], f[1], f[2], f[3], number))
        else:
            print(f"line {number} is malformed: {raw}")
    # The new name of an enum whose variants are renamed, too.
    enums = collections.defaultdict(set)
    for scope, old, new, kind, number in lines:
        if kind == "type":
            enums[old].add(new)
    lines = [(s, o, n, " ".join([k] + sorted(enums[k.split()[1]])) if k.startswith("variant") else k, i) for s, o, n, k, i in lines]
    files = list(rust_files(root))
    exists = lambda p: os.path.exists(os.path.join(root, p))
    texts = {f: open(os.path.join(root, f)).read() for f in files}
    original = dict(texts)

    # 1. Where scopes and moves are in this tree.
    problems = []
    resolved = []
    for scope, old, new, kind, number in lines:
        c = candidates(scope, files, exists)
        if not c:
            problems.append(f"line {number}: scope {scope} does not exist ({old})")
            continue
        if c != [scope] and args.v:
            print(f"line {number}: scope {scope} is now {c}")
        for place in c:
            resolved.append((place, old, new, kind, number))
    real_moves = []
    for old, new in moves:
        c = candidates(old, files, exists)
        if not c:
            problems.append(f"mv {old}: does not exist")
            continue
        if c[0] != old:
            # keep the new name, in the folder where the file is now
            new = os.path.join(os.path.dirname(c[0]), os.path.basename(new))
            old = c[0]
        if exists(new):
            problems.append(f"mv {old}: {new} exists already")
            continue
        real_moves.append((old, new))

    # Files of a folder before the folder itself.
    real_moves.sort(key=lambda m: -m[0].count("/"))

    # 2. Modules of moved files.
    def module_of(path):
        base = os.path.basename(path)
        return os.path.basename(os.path.dirname(path)) if base in ("mod.rs",) else base[:-3] if base.endswith(".rs") else base

    modules = collections.Counter(module_of(f) for f in files)
    for old, new in real_moves:
        o, n = module_of(old), module_of(new)
        if o == n:
            continue
        crate = "/".join(old.split("/")[:2])
        parent = os.path.dirname(old)
        others = [f for f in files if module_of(f) == o and f != old and f.startswith(crate + "/")
                  and os.path.dirname(f) != os.path.join(parent, o)]
        number = f"mv {old}"
        scope = crate if not others else parent
        for f in files:
            if os.path.dirname(f) == parent + "/" + o:
                pass
        resolved.append((scope, o, n, "mod", number))
        # elsewhere only behind the name of the parent or of the crate
        resolved.append(("*behind:" + crate, o, n, "mod", number))

    # 3. Rename in the code.
    count = collections.Counter()
    changed = set()
    by_spec = lambda s: (0 if s == "*" else 1 if s.startswith("*behind") else 2 + s.count("/") + (10 if s.endswith(".rs") else 0))
    for f in files:
        table = collections.defaultdict(list)
        chosen = {}
        for scope, old, new, kind, number in resolved:
            if scope.startswith("*behind:"):
                crate = scope[8:]
                if f.startswith(crate + "/"):
                    continue
                if not (os.path.basename(crate) + "::") in texts[f]:
                    continue
                kind = f"mod {os.path.basename(crate)} treering_{os.path.basename(crate)}"
            elif not in_scope(f, scope):
                continue
            key = (old, kind)
            if key not in chosen or by_spec(scope) > by_spec(chosen[key][0]):
                chosen[key] = (scope, new, number)
        for (old, kind), (scope, new, number) in chosen.items():
            table[old].append((new, kind, number))
        # the kind that is decided by its context first
        order = {"mod": 0, "fn": 1, "variant": 2, "type": 3, "const": 4, "field": 5}
        for old in table:
            table[old].sort(key=lambda r: (order[r[1].split()[0]], -len(r[1])))
        text = texts[f]
        if not any(w in table for w in set(PATHCHARS.findall(text))):
            continue
        new_text = rename_tokens(text, table, text, count, comment_renamer(table, count))
        if new_text != text:
            texts[f] = new_text
            changed.add(f)

    # 4. Pages: names that mean one thing.
    meanings = collections.defaultdict(set)
    defined = collections.Counter()
    for f in files:
        for m in re.finditer(r"\b(?:struct|enum|trait|type|fn|const|static|mod)\s+([A-Za-z_]\w*)", original[f]):
            defined[m.group(1)] += 1
    for scope, old, new, kind, number in resolved:
        meanings[(old, kind)].add(new)
    page_table = collections.defaultdict(list)
    for (old, kind), news in meanings.items():
        if len(news) == 1 and kind in ("type", "const", "fn", "mod") and (defined[old] == 1 or any(
            s == "*" and o == old for s, o, *_ in resolved)):
            page_table[old].append((next(iter(news)), kind, "page"))
    pages = {}
    page_count = collections.Counter()
    for p in page_files(root):
        text = open(os.path.join(root, p)).read()
        out, fence = [], None
        for line in text.split("\n"):
            if line.lstrip().startswith("```"):
                fence = None if fence is not None else line.strip()[3:]
                out.append(line)
            elif fence is None:
                out.append(spans(line, page_table, page_count) if not p.startswith("CHANGELOG") else line)
            elif fence.startswith("rust"):
                out.append(rename_tokens(line, page_table, "", page_count))
            else:
                out.append(line)
        if (new_text := "\n".join(out)) != text:
            pages[p] = new_text

    # 5. Paths of moved files, wherever they are named.
    filenames = collections.Counter(os.path.basename(f) for f in files)
    rules = []
    for old, new in real_moves:
        base = os.path.basename(old)
        whole, below = [], []
        for cut in range(0, old.count("/")):
            o, n = ("/".join(x.split("/")[cut:]) for x in (old, new))
            whole.append((re.compile(rf"(?<![\w/.-]){re.escape(o)}(?![\w-])"), n))
            if old.endswith(".rs") and "/" in o:
                below.append((re.compile(rf"(?<![\w/.-]){re.escape(o[:-3])}(?=/\w)"), n[:-3]))
        if filenames[base] == 1 and base.endswith(".rs"):
            whole.append((re.compile(rf"""(?<=[`"]){re.escape(base)}(?=[`"])"""), os.path.basename(new)))
        if not base.endswith(".rs"):
            whole.append((re.compile(rf"(?<=`){re.escape(base)}/(?=`)"), os.path.basename(new) + "/"))
        has_folder = old.endswith(".rs") and os.path.isdir(os.path.join(root, old[:-3]))
        rules.append((base, whole, below if has_folder else []))

    def repath(text):
        for base, whole, below in rules:
            if base in text:
                for pattern, n in whole:
                    text = pattern.sub(n, text)
            if below and base[:-3] + "/" in text:
                for pattern, n in below:
                    text = pattern.sub(n, text)
        return text

    if real_moves:
        for f in files:
            t = repath(texts[f])
            if t != texts[f]:
                texts[f] = t
                changed.add(f)
        for p in list(page_files(root)) + list(other_files(root)):
            try:
                text = pages.get(p) or open(os.path.join(root, p)).read()
            except (UnicodeDecodeError, IsADirectoryError, FileNotFoundError):
                continue
            t = repath(text)
            if t != text:
                pages[p] = t

    # 6. Reports.
    reported = set()
    for scope, old, new, kind, number in resolved:
        if number not in reported and not count[number] and not str(number).startswith("mv"):
            reported.add(number)
            problems.append(f"line {number}: {old} ({kind}) is not found in {scope}")
    for old, new in real_moves:
        if not count[f"mv {old}"] and not any(f'"{os.path.basename(new)}"' in t for t in texts.values()):
            problems.append(f"mv {old}: no `mod` line found")
    warnings = []
    words = {f: set(PATHCHARS.findall(original[f])) for f in files}
    tokencache = {}

    def code_words(f):
        if f not in tokencache:
            tokencache[f] = {t[1] for t in lex(original[f]) if t[0] == "id"}
        return tokencache[f]

    olds = {(s, o, k) for s, o, n, k, _ in resolved}
    for scope, old, new, kind, number in resolved:
        if scope.startswith("*behind"):
            continue
        for f in files:
            if in_scope(f, scope) and old in words[f] and new in words[f] and new in code_words(f) and old in code_words(f):
                if any(o == new and k == kind and in_scope(f, s) for s, o, k in olds):
                    continue
                warnings.append(f"line {number}: {f} has {new} already ({old}, {kind})")
    for p in problems:
        print("problem:", p)
    if args.v or args.dry_run:
        for w in warnings:
            print("clash?", w)
    print(f"{len(changed)} files of code, {len(pages)} pages, {len(real_moves)} moves, "
          f"{sum(count.values())} places, {len(problems)} problems, {len(warnings)} possible clashes")
    if args.dry_run:
        return
    for f in changed:
        with open(os.path.join(root, f), "w") as h:
            h.write(texts[f])
    for p, t in pages.items():
        with open(os.path.join(root, p), "w") as h:
            h.write(t)
    moved = {}
    for old, new in real_moves:
        os.rename(os.path.join(root, old), os.path.join(root, new))
        moved[old] = new
        if old.endswith(".rs") and os.path.isdir(os.path.join(root, old[:-3])):
            os.rename(os.path.join(root, old[:-3]), os.path.join(root, new[:-3]))
        # proptest keeps its regressions under the path of the file, below the crate's folder
        for tops in ("proptest-regressions",):
            tail_old = "/".join(old.split("/")[1:]).replace(".rs", ".txt")
            tail_new = "/".join(new.split("/")[1:]).replace(".rs", ".txt")
            a, b = os.path.join(root, tops, tail_old), os.path.join(root, tops, tail_new)
            if os.path.exists(a):
                os.makedirs(os.path.dirname(b), exist_ok=True)
                os.rename(a, b)
    if not args.no_fmt:
        # The roots of crates: rustfmt follows their modules, each once, as `cargo fmt` does.
        import glob
        roots = []
        for pattern in ("src/*/lib.rs", "src/*/main.rs", "src/*/build.rs", "src/lib.rs", "bench/src/main.rs", "bench/tests/*.rs",
                        "benches/*.rs", "examples/*.rs", "tests/*.rs", "tests/*/main.rs", "fuzz/*.rs", "fuzz/*/*.rs"):
            roots += sorted(glob.glob(os.path.join(root, pattern)))
        r = subprocess.run(["rustfmt", "--edition", "2024"] + roots, cwd=root, capture_output=True, text=True)
        if r.returncode:
            print("rustfmt:", r.stderr[:3000])


if __name__ == "__main__":
    main()
