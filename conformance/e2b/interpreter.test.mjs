// Code, as the SDK of E2B's code interpreter documents it.
import assert from 'node:assert/strict'
import { after, before } from 'node:test'
import { Sandbox } from '@e2b/code-interpreter'
import { InvalidArgumentError, NotFoundError, TimeoutError } from 'e2b'
import { failure, test, until, within } from './sandbox.mjs'

const interpreter = '/.sandpit/sandpit-guest interpreter'
let box
// The template shows this machine's programs, and starts none.
before(async () => {
  box = await Sandbox.create('code', { envs: { FROM_CREATE: 'create' } })
  // Debian's matplotlib has its configuration in /etc, which is the sandbox's own.
  await box.files.write('/tmp/matplotlibrc', '')
  await box.commands.run(interpreter, { background: true, timeoutMs: 0, envs: { MATPLOTLIBRC: '/tmp/matplotlibrc' } })
  await until('an interpreter', async () => (await fetch(`${box.jupyterUrl}/health`, { headers: { 'E2b-Sandbox-Id': box.sandboxId, 'E2b-Sandbox-Port': '49999' } })).ok, 60_000)
})
after(() => box?.kill())
const run = (code, opts) => box.runCode(code, opts)
const js = { language: 'js' }

test('a result, and what was printed', async () => {
  const { text, logs, error, results, executionCount } = await run('import sys\nprint("out")\nprint("err", file=sys.stderr)\n6 * 7')
  assert.equal(text, '42')
  assert.deepEqual(logs, { stdout: ['out\n'], stderr: ['err\n'] })
  assert.equal(error, undefined)
  assert.equal(results.length, 1)
  assert.equal(results[0].isMainResult, true)
  assert.ok(executionCount >= 1)
})

test('variables stay', async () => {
  await run('test_stateful = 1')
  assert.equal((await run('test_stateful += 1\ntest_stateful')).text, '2')
})

test('an error', async () => {
  const { error } = await run('import nowhere_at_all')
  assert.equal(error.name, 'ModuleNotFoundError')
  assert.equal(error.value, "No module named 'nowhere_at_all'")
  assert.match(error.traceback, /import nowhere_at_all/)
})

test('callbacks are called as things happen', async () => {
  const seen = []
  const note = (name) => (data) => { seen.push([name, data.line ?? data.text ?? data.name, Date.now()]) }
  const began = Date.now()
  await run('import time\nprint("a")\ntime.sleep(1)\ndisplay(7)\nraise ValueError("b")', {
    onStdout: note('stdout'), onStderr: note('stderr'), onResult: note('result'), onError: note('error'),
  })
  assert.deepEqual(seen.map(([name, text]) => [name, text]), [['stdout', 'a\n'], ['result', '7'], ['error', 'ValueError']])
  assert.ok(seen[1][2] - seen[0][2] > 500, `all came at once, ${Date.now() - began} ms after the start`)
})

test('the environment', async () => {
  const read = 'import os; [os.environ.get(n) for n in ("FROM_CREATE", "PER_RUN")]'
  assert.equal((await run(read)).text, "['create', None]")
  assert.equal((await run(read, { envs: { PER_RUN: '1', FROM_CREATE: 'run' } })).text, "['run', '1']")
  assert.equal((await run(read)).text, "['create', None]")
  assert.equal((await run('process.env.FROM_CREATE', js)).text, 'create')
  assert.equal((await run('process.env.PER_RUN', { ...js, envs: { PER_RUN: '1' } })).text, '1')
  assert.equal((await run("process.env.PER_RUN || 'default'", js)).text, 'default')
  assert.deepEqual((await run('echo $FROM_CREATE ${PER_RUN:-default}', { language: 'bash' })).logs.stdout, ['create default\n'])
})

test('shell commands', async () => {
  assert.equal((await run('!echo from the shell')).logs.stdout.join(''), 'from the shell\n')
  const { error, logs } = await run('echo out; (exit 3)', { language: 'bash' })
  assert.deepEqual([error.value, logs.stdout], ['3', ['out\n']])
})

test('contexts', async () => {
  const before = await box.listCodeContexts()
  assert.ok(['python', 'javascript'].every((l) => before.some((c) => c.language === l)), JSON.stringify(before))
  const context = await box.createCodeContext({ cwd: '/tmp' })
  assert.deepEqual((await box.listCodeContexts()).at(-1), context)
  assert.deepEqual([context.language, context.cwd], ['python', '/tmp'])
  await run('only_here = 1', { context })
  assert.equal((await run('only_here', { context })).text, '1')
  assert.equal((await run('import os; os.getcwd()', { context })).text, '/tmp')
  assert.equal((await run('only_here')).error.name, 'NameError')
  await box.restartCodeContext(context)
  assert.equal((await run('only_here', { context })).error.name, 'NameError')
  await box.removeCodeContext(context.id)
  assert.ok(!(await box.listCodeContexts()).some((c) => c.id === context.id))
  // The SDK's own timer of a request that fails goes on, and node waits for it.
  await failure(run('1', { context, requestTimeoutMs: 2_000 }), NotFoundError, /not found/)
  await failure(run('1', { context, language: 'js' }), InvalidArgumentError)
})

test('JavaScript and TypeScript', async () => {
  assert.deepEqual((await run('console.log("Hello World!")', js)).logs.stdout, ['Hello World!\n'])
  assert.equal((await run('const add = (x, y) => x + y;\nadd(1, 2)', js)).text, '3')
  assert.equal((await run('add(3, 4)', js)).text, '7')
  assert.equal((await run(`async function main() { return 'Hello' }\nawait main()`, js)).text, 'Hello')
  assert.equal((await run(`import { basename } from 'node:path'\nbasename('/a/b')`, js)).text, 'b')
  for (const language of ['ts', 'tslab']) {
    assert.equal((await run('function f(x: number): number { return -x }\nf(1)', { language })).text, '-1')
  }
})

test('code goes on after its client was too slow', async () => {
  await failure(run('import time\nkept = 1\ntime.sleep(600)', { timeoutMs: 1_000 }), TimeoutError)
  assert.equal((await within('the next run', run('kept'))).text, '1')
})

test('a kernel that breaks down has a successor', async () => {
  const { error } = await run('import os; os._exit(3)')
  assert.equal(error.name, 'ContextRestarting')
  assert.match(error.value, /^Context was restarted/)
  assert.equal((await run('6 * 7')).text, '42')
})

test('kernels that are killed, by whomever, have successors that know nothing', async () => {
  const context = await box.createCodeContext()
  const pid = async () => (await run('import os; kept = 1; os.getpid()', { context })).text
  // While nothing runs.
  await box.commands.run(`kill -9 ${await pid()}`)
  assert.equal((await within('the next run', run('kept', { context }))).error?.name, 'NameError')
  // In the middle of a run, which says so.
  const id = await pid()
  const running = run('print("up", flush=True)\nimport time; time.sleep(600)', { context, onStdout: () => box.commands.run(`kill -9 ${id}`) })
  const { error, logs } = await within('the end of the run', running)
  assert.deepEqual([error?.name, logs.stdout], ['ContextRestarting', ['up\n']])
  assert.match(error.value, /variables are lost, and the next run has a new one/)
  assert.equal((await run('kept', { context })).error?.name, 'NameError')
  assert.ok((await box.listCodeContexts()).some((c) => c.id === context.id), 'the context is the same')
  // Because memory is not enough.
  const full = await within('the end of what takes too much', run('x = bytearray(64 << 30)\nfor i in range(0, len(x), 4096): x[i] = 1', { context }), 60_000)
  assert.ok(['ContextRestarting', 'MemoryError'].includes(full.error?.name), JSON.stringify(full.error))
  assert.equal((await run('6 * 7', { context })).text, '42')
  for (const [language, end, check] of [['js', 'process.exit(3)', '6 * 7'], ['bash', 'exit 3', 'echo 42']]) {
    assert.ok((await within(`the end of ${language}`, run(end, { language }))).error, `${language} ends, and says nothing`)
    const after = await within(`${language} again`, run(check, { language }))
    assert.equal((after.text ?? after.logs.stdout.join('')).trim(), '42')
  }
})

test('results of every kind', async () => {
  const { results } = await run(`
from IPython.display import *
display(HTML('<b>h</b>'), Markdown('*m*'), SVG('<svg xmlns="http://www.w3.org/2000/svg"/>'), Latex('$l$'), JSON({'a': [1]}), Javascript('1'))
display({'application/pdf': 'cGRm', 'image/jpeg': 'anBn', 'image/png': 'cG5n', 'x/y': 'extra'}, raw=True)`)
  const [html, markdown, svg, latex, json, javascript, rest] = results
  assert.equal(html.html, '<b>h</b>')
  assert.equal(markdown.markdown, '*m*')
  assert.match(svg.svg, /^<svg/)
  assert.equal(latex.latex, '$l$')
  assert.deepEqual(json.json, { a: [1] })
  assert.equal(javascript.javascript, '1')
  assert.deepEqual([rest.pdf, rest.jpeg, rest.png, rest.isMainResult], ['cGRm', 'anBn', 'cG5n', false])
  assert.deepEqual(rest.raw.extra, { 'x/y': 'extra' })
})

test('a table', async () => {
  const { results } = await run('import pandas as pd\npd.DataFrame({"a": [1, 2], "b": [0.5, None], "c": pd.to_datetime(["2024-01-01", None])})')
  assert.deepEqual(results[0].data, { a: [1, 2], b: [0.5, null], c: ['2024-01-01T00:00:00', null] })
  assert.match(results[0].html, /<table/)
})

// chart returns what a figure shows.
async function chart(code) {
  const { results, error, logs } = await run(`import matplotlib.pyplot as plt, numpy as np, datetime\n${code}\nplt.show()`)
  assert.equal(error, undefined, error?.traceback)
  assert.equal(results.length, 1, logs.stderr.join(''))
  assert.ok(results[0].png?.length > 1000, 'there is no picture')
  assert.ok(results[0].chart, logs.stderr.join(''))
  return results[0].chart
}

test('a chart of lines', async () => {
  const c = await chart(`
dates = [datetime.date(2023, 9, 1) + datetime.timedelta(days=i) for i in range(10)]
plt.plot(dates, np.arange(10) / 2, label='half'); plt.plot(dates, np.arange(10))
plt.xlabel('Time (s)'); plt.ylabel('Amplitude [Hz]'); plt.title('Lines')`)
  assert.deepEqual([c.type, c.title, c.x_label, c.x_unit, c.y_label, c.y_unit, c.x_scale, c.y_scale],
    ['line', 'Lines', 'Time (s)', 's', 'Amplitude [Hz]', 'Hz', 'datetime', 'linear'])
  assert.ok(c.x_ticks.every((t) => !isNaN(new Date(t))) && c.y_ticks.every((t) => typeof t === 'number'))
  assert.deepEqual(c.elements.map((e) => [e.label, e.points[1]]), [['half', ['2023-09-02', 0.5]], ['Line 1', ['2023-09-02', 1]]])
})

test('charts of words and of logarithms', async () => {
  const c = await chart(`plt.plot([1, 2, 3], ['A', 'B', 'C']); plt.xscale('log')`)
  assert.deepEqual([c.x_scale, c.y_scale, c.x_unit, c.title], ['log', 'categorical', null, null])
})

test('a chart of points', async () => {
  const c = await chart(`plt.scatter([1, 2], [3, 4], label='one'); plt.scatter([5], [6], label='two')`)
  assert.equal(c.type, 'scatter')
  assert.deepEqual(c.elements, [{ label: 'one', points: [[1, 3], [2, 4]] }, { label: 'two', points: [[5, 6]] }])
})

test('charts of bars', async () => {
  const standing = await chart(`plt.bar(['A', 'B'], [100, 200]); plt.xlabel('who'); plt.ylabel('sold')`)
  const elements = [{ label: 'A', group: 'Group 0', value: 100 }, { label: 'B', group: 'Group 0', value: 200 }]
  assert.deepEqual([standing.type, standing.x_label, standing.y_label, standing.elements], ['bar', 'who', 'sold', elements])
  const lying = await chart(`plt.barh(['A', 'B'], [100, 200]); plt.ylabel('who'); plt.xlabel('sold')`)
  assert.deepEqual([lying.type, lying.x_label, lying.y_label, lying.elements], ['bar', 'who', 'sold', elements])
})

test('a chart of a pie', async () => {
  const c = await chart(`plt.pie([90, 10], labels=['No', 'No, in blue'], autopct='%1.1f%%', startangle=90); plt.title('Awake?')`)
  assert.deepEqual(c, { type: 'pie', title: 'Awake?', elements: [{ label: 'No', angle: 324, radius: 1 }, { label: 'No, in blue', angle: 36, radius: 1 }] })
})

test('a chart of boxes', async () => {
  for (const vert of ['True', 'False']) {
    const c = await chart(`
data = {'Class A': [85, 90, 78, 92, 88], 'Class B': [95, 89, 76, 91, 84, 87], 'Class C': [75, 82, 88, 79, 86]}
plt.boxplot(data.values(), labels=data.keys(), patch_artist=True, vert=${vert})`)
    assert.equal(c.type, 'box_and_whisker')
    assert.deepEqual(c.elements, [
      { label: 'Class A', min: 78, first_quartile: 85, median: 88, third_quartile: 90, max: 92, outliers: [] },
      { label: 'Class B', min: 84, first_quartile: 84.75, median: 88, third_quartile: 90.5, max: 95, outliers: [76] },
      { label: 'Class C', min: 75, first_quartile: 79, median: 82, third_quartile: 86, max: 88, outliers: [] },
    ])
  }
})

test('charts beside each other, and one of a kind of its own', async () => {
  const c = await chart(`
fig, (a, b) = plt.subplots(1, 2); fig.suptitle('Two')
a.plot([1, 2], [3, 4]); a.set_title('Left'); b.add_artist(plt.Circle((0, 0), 1)); b.set_title('Right')`)
  assert.deepEqual([c.type, c.title, c.elements.map((e) => [e.type, e.title, e.elements.length])], ['superchart', 'Two', [['line', 'Left', 1], ['unknown', 'Right', 0]]])
})

test('kernels survive a pause', async () => {
  await run('before_pause = 1')
  await run('beforePause = 1', js)
  await box.pause()
  await box.connect()
  assert.equal((await run('before_pause')).text, '1')
  assert.equal((await run('beforePause', js)).text, '1')
})
