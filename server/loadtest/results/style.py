"""How the report looks: light and dark, in six colours that colour-blind readers tell apart (Okabe and Ito's)."""

RULES = """
:root{--ink:#1c2430;--soft:#5b6675;--page:#fff;--card:#f6f8fa;--line:#d9dfe6;--good:#1a7f37;--bad:#c62828;
  --warn:#9a6700;--c0:#0072b2;--c1:#d55e00;--c2:#009e73;--c3:#cc79a7;--c4:#b8860b;--c5:#56b4e9}
@media(prefers-color-scheme:dark){
  :root{--ink:#e6e9ee;--soft:#9aa5b4;--page:#12161c;--card:#1a2028;--line:#303945;--good:#4ac26b;--bad:#ff7b72;
  --warn:#e3b341;--c0:#58a6ff;--c1:#f0883e;--c2:#3fb98a;--c3:#e29bc3;--c4:#d8b24a;--c5:#8cc8f0}
}
*{box-sizing:border-box}
body{margin:0 auto;max-width:1360px;padding:28px 20px 60px;background:var(--page);color:var(--ink);
  font:15px/1.5 system-ui,sans-serif}
h1{font-size:24px;margin:0 0 4px}
h2{font-size:18px;margin:36px 0 10px}
h3{font-size:14px;margin:0 0 6px;font-weight:600}
p{margin:6px 0}
.soft{color:var(--soft)}
.tiles{display:flex;flex-wrap:wrap;gap:12px;margin:18px 0}
.tile{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:10px 13px;min-width:118px}
.tile b{display:block;font-size:22px;font-variant-numeric:tabular-nums}
.good{color:var(--good)}
.bad{color:var(--bad)}
.warn{color:var(--warn)}
.grid2+.card{margin-top:16px}
.grid2{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,480px),1fr));gap:16px}
.card{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:14px;min-width:0;
  overflow-x:auto}
table{border-collapse:collapse;font-variant-numeric:tabular-nums}
th,td{padding:3px 12px 3px 0;text-align:right}
th:first-child,td:first-child{text-align:left}
th{color:var(--soft);font-weight:500}
tr+tr td{border-top:1px solid var(--line)}
td.text,th.text{text-align:left}
svg{width:100%;height:auto;display:block}
svg text{fill:var(--soft);font-size:11px}
.grid{stroke:var(--line);stroke-width:1;fill:none}
.dots{opacity:.55}
.legend{display:flex;flex-wrap:wrap;gap:4px 14px;font-size:12px;color:var(--soft);margin-bottom:4px}
.legend i{display:inline-block;width:10px;height:10px;border-radius:2px;margin-right:5px}
.none{color:var(--soft)}
dt{font-weight:600}
dd{margin:0 0 6px;color:var(--soft)}
pre{white-space:pre-wrap}
"""
COLOURS = "".join(
    f".s{i}{{stroke:var(--c{i});stroke-width:1.8;fill:none}}.f{i}{{fill:var(--c{i})}}.b{i}{{background:var(--c{i})}}"
    for i in range(6)
)
STYLE = RULES + COLOURS
