"""The report's file for jinja2: its parts, and how they look.

It is light and dark, in six colours that colour-blind readers tell apart (Okabe and Ito's).
"""

PAGE = """
{%- macro row(tag, cells, words) -%}
<tr>{% for cell in cells -%}
<{{ tag }}{% if loop.index0 in words %} class="text"{% endif %}>{{ cell }}</{{ tag }}>
{%- endfor %}</tr>
{%- endmacro -%}
{%- macro table(head, rows, words=()) -%}
<table>{{ row('th', head, words) }}{% for cells in rows %}{{ row('td', cells, words) }}{% endfor %}</table>
{%- endmacro -%}
{%- macro card(title, content) -%}
<div class="card">{% if title %}<h3>{{ title }}</h3>{% endif %}{{ content }}</div>
{%- endmacro -%}
{%- macro cards(plots) %}{% for title, svg in plots %}{{ card(title, svg | safe) }}{% endfor %}{% endmacro -%}
{%- macro grid(plots) %}<div class="grid2">{{ cards(plots) }}</div>{% endmacro -%}
{%- macro tile(name, value, kind='') -%}
<div class="tile"><b class="{{ kind }}">{{ value }}</b>{{ name }}</div>
{%- endmacro -%}
{%- macro percent(share) %}{{ '%.1f%%' % (100 * share) }}{% endmacro -%}
{%- macro median(found, name) -%}
{{ '%.1f ms' % (1000 * found.latencies[name].percentiles.p50) if name in found.latencies else '-' }}
{%- endmacro -%}
<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>Load test of {{ result.target }}</title><style>
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
{% for n in range(6) -%}
.s{{ n }}{stroke:var(--c{{ n }});stroke-width:1.8;fill:none}.f{{ n }}{fill:var(--c{{ n }})}
.b{{ n }}{background:var(--c{{ n }})}
{% endfor %}</style></head><body>
<h1>Load test of {{ result.target }}</h1>
<p class="soft">{{ result.model or 'model not named' }} · {{ result.began }} · pixelferry {{ result.version }}</p>
{%- if result.steps %}{% set found = result.steps[-1].summary %}
<div class="tiles">{{ tile('requests', found.requests) }}
{{- tile('failed', found.failed, 'bad' if found.failed else 'good') }}
{%- if result.objectives %}{{ tile('within objectives', percent(found.good_share)) }}{% endif %}
{{- tile('requests / s', '%.2f' % found.request_rate) }}
{{- tile('output tokens / s', '%.0f' % found.output_rate) }}
{%- for name in ('ttft', 'tpot', 'e2el') %}{{ tile(name ~ ' p50', median(found, name)) }}{% endfor %}
{{- tile('leaks', result.leak, {'clean': 'good', 'leaked': 'bad'}.get(result.leak, 'warn')) }}</div>
{%- endif %}
{%- for failure in result.failures %}<p class="bad"><b>Failed:</b> {{ failure }}</p>{% endfor %}
{%- for text in result.client.warnings %}<p class="warn"><b>The client was slow:</b> {{ text }}</p>{% endfor %}
{%- for note in result.notes %}<p class="soft">{{ note }}</p>{% endfor %}
{%- if met %}<p class="good">Met: {{ met | join(', ') }}</p>{% endif %}
{%- if sweep %}
<h2>Sweep</h2>
<p>{{ 'Highest load that was carried: ' ~ result.knee.label if result.knee else 'No load was carried.' }}</p>
<div class="card"><table>
{{- row('th', ['load', 'answered / s', 'tokens / s', 'within objectives', 'failed', 'ttft p50', 'tpot p50',
               'e2el p50'], ()) }}
{%- for step in result.steps %}{% set found = step.summary %}
{{- row('td', [step.label, '%.2f' % found.request_rate, '%.0f' % found.output_rate, percent(found.good_share),
               found.failed, median(found, 'ttft'), median(found, 'tpot'), median(found, 'e2el')], ()) }}
{%- endfor %}</table></div>{{ grid(sweep) }}
{%- endif %}
{%- for step in steps %}
<h2>{{ step.label }}</h2>
{% for error, n in step.errors.items() %}<p class="bad">{{ n }} x {{ error }}</p>{% endfor -%}
<div class="grid2">{{ card('Latencies', table(step.head, step.latencies)) }}
{%- if step.bars %}{{ card('Where the server spent the time (mean, by kind of request)', step.bars | safe) }}{% endif %}
{{- cards(step.plots) }}</div>
{%- if step.bars %}{{ card('Stages, as the server tells them', table(step.head, step.stages)) }}{% endif %}
{%- endfor %}
{%- if server %}<h2>The server meanwhile</h2>{{ grid(server) }}{% endif %}
<h2>Afterwards</h2>{{ card('', table(['verdict', 'what', 'before', 'after', ''], findings, (1, 4))) }}
<h2>The client itself</h2>{{ grid(client) }}
<h2>How it is computed</h2>
<dl>{% for name, text in result.formulas.items() %}<dt>{{ name }}</dt><dd>{{ text }}</dd>{% endfor %}</dl>
<h2>Options</h2>
<pre class="soft">
{%- for name, value in result.options.items() %}{{ name }} = {{ value }}{{ '' if loop.last else '\n' }}{% endfor -%}
</pre></body></html>"""
