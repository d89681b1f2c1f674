// The JavaScript and TypeScript kernel: V8's own read-eval-print mode, which knows await at
// the top level and lets names be declared again, driven by lines of JSON. Descriptor 3 gives what is
// to be run, 4 takes events; a mark in 1 and 2 ends each run's output.
//
// A thread of its own reads descriptor 3: while a program runs in circles, nobody else could
// hear that it is to be interrupted.
'use strict'
const fs = require('node:fs')
const inspector = require('node:inspector')
const path = require('node:path')
const util = require('node:util')
const vm = require('node:vm')
const { createRequire } = require('node:module')
const { pathToFileURL } = require('node:url')
const { Worker } = require('node:worker_threads')

const EVENTS = 4
require('node:fs').closeSync(5)
const MARK = '@MARK@'
// The largest one representation of a result, and all of them together, in bytes of JSON.
const LARGEST = 8 << 20
const LARGEST_ALL = 24 << 20
const outputs = [process.stdout, process.stderr].map((stream) => ({ stream, write: stream.write }))

function emit(type, fields) {
  let data = Buffer.from(JSON.stringify({ type, ...fields }) + '\n')
  while (data.length > 0) data = data.subarray(fs.writeSync(EVENTS, data))
}

const session = new inspector.Session()
session.connect()
const post = (method, params) =>
  new Promise((resolve, reject) => session.post(method, params, (error, result) => (error ? reject(error) : resolve(result))))

// valueOf returns what the inspector means by a remote object.
let received
const receive = (value) => { received = value }
async function valueOf(remote) {
  if ('unserializableValue' in remote) return remote.type === 'bigint' ? BigInt(remote.unserializableValue.slice(0, -1)) : Number(remote.unserializableValue)
  if (!remote.objectId) return remote.value
  const { result } = await post('Runtime.evaluate', { expression: 'globalThis[Symbol.for("sandpit.receive")]' })
  await post('Runtime.callFunctionOn', { objectId: result.objectId, functionDeclaration: 'function (value) { this(value) }', arguments: [{ objectId: remote.objectId }] })
  const value = received
  received = undefined
  return value
}

const mimeOf = {
  text: 'text/plain', html: 'text/html', markdown: 'text/markdown', svg: 'image/svg+xml', png: 'image/png',
  jpeg: 'image/jpeg', pdf: 'application/pdf', latex: 'text/latex', json: 'application/json', javascript: 'application/javascript',
}

// bundle is what a result looks like; an object may say so by the symbol Jupyter.display.
function bundle(value) {
  const own = value?.[Symbol.for('Jupyter.display')]
  if (typeof own === 'function') return own.call(value)
  return { 'text/plain': typeof value === 'string' ? value : util.inspect(value) }
}

function emitResult(data, main) {
  const kept = {}
  let room = LARGEST_ALL
  for (const [mime, value] of Object.entries(data)) {
    const text = Buffer.isBuffer(value) ? value.toString('base64') : value
    const size = Buffer.byteLength(JSON.stringify(text) ?? '')
    if (size > Math.min(LARGEST, room)) {
      process.stderr.write(`${mime} of ${size} bytes left out: a result may have ${LARGEST}\n`)
      continue
    }
    room -= size
    kept[mime] = text
  }
  emit('result', { main, data: kept })
}

// display shows a value, or one of a kind: display(text, 'html').
function display(value, kind) {
  emitResult(kind === undefined ? bundle(value) : { [mimeOf[kind] ?? kind]: value }, false)
}

// load is import for code that is no module: names are looked up from the working directory.
function load(name) {
  if (/^(node|data|file|https?):/.test(name)) return import(name)
  const require = createRequire(path.join(process.cwd(), 'kernel.js'))
  const found = require.resolve(name)
  return import(path.isAbsolute(found) ? pathToFileURL(found).href : found)
}

let typescript
function compiler() {
  for (const place of ['typescript', '/usr/share/nodejs/typescript', '/usr/local/lib/node_modules/typescript', '/usr/lib/node_modules/typescript']) {
    try {
      typescript ??= createRequire(path.join(process.cwd(), 'kernel.js'))(place)
    } catch (error) {
      if (error.code !== 'MODULE_NOT_FOUND') throw error
    }
  }
  if (!typescript) throw new Error('TypeScript, and import in JavaScript, need the package typescript, which is not installed')
  return typescript
}

// withoutImports writes imports as what code that is no module can do, line by line.
function withoutImports(code) {
  const ts = compiler()
  const file = ts.createSourceFile('cell.ts', code, ts.ScriptTarget.Latest, true)
  const edits = []
  const visit = (node) => {
    if (ts.isImportDeclaration(node)) edits.push([node.getStart(), node.getEnd(), declaration(ts, node)])
    else if (node.kind === ts.SyntaxKind.ImportKeyword && ts.isCallExpression(node.parent)) edits.push([node.getStart(), node.getEnd(), '__import'])
    else if (node.kind === ts.SyntaxKind.ExportKeyword && node.parent.parent === file) edits.push([node.getStart(), node.getEnd(), ''])
    node.getChildren().forEach(visit)
  }
  visit(file)
  for (const [start, end, text] of edits.reverse()) code = code.slice(0, start) + text + code.slice(end)
  return code
}

function declaration(ts, node) {
  const from = `await __import(${node.moduleSpecifier.getText()})`
  const clause = node.importClause
  if (!clause) return from
  if (clause.isTypeOnly) return ''
  const names = []
  if (clause.name) names.push(`default: ${clause.name.text}`)
  const bound = clause.namedBindings
  if (bound && ts.isNamedImports(bound)) {
    for (const e of bound.elements) if (!e.isTypeOnly) names.push(e.propertyName ? `${e.propertyName.text}: ${e.name.text}` : e.name.text)
  }
  const all = bound && ts.isNamespaceImport(bound) ? `const ${bound.name.text} = ${from};` : ''
  return all + (names.length > 0 || !all ? `const { ${names.join(', ')} } = ${from};` : '')
}

function prepared(request) {
  let code = request.code
  if (/\b(import|export)\b/.test(code)) code = withoutImports(code)
  if (request.language !== 'typescript') return expression(code, isScript)
  const ts = compiler()
  // What is a module may await anywhere, and what it exports is not asked for.
  const compilerOptions = { target: ts.ScriptTarget.ESNext, module: ts.ModuleKind.ESNext }
  const transpile = (text) => ts.transpileModule(text + '\nexport {};', { compilerOptions, reportDiagnostics: true })
  code = expression(code, (text) => transpile(text).diagnostics.length === 0)
  return transpile(code).outputText.replace(/export \{\};\s*$/, '')
}

// expression returns code that begins with a brace as an object, if it can be one and not a block only.
function expression(code, parses) {
  if (!/^\s*\{/.test(code) || /;\s*$/.test(code)) return code
  const object = `(${code}\n)`
  return parses(object) ? object : code
}

function isScript(text) {
  try {
    new vm.Script(text)
    return true
  } catch {
    return false
  }
}

function describe(error) {
  if (!(error instanceof Error) && !util.types.isNativeError(error)) return { name: 'Error', value: util.inspect(error), traceback: util.inspect(error) }
  // What is below the code is the kernel.
  const stack = String(error.stack).split('\n').filter((line) => !/node:inspector|\[eval\]|<kernel>|new Promise \(<anonymous>\)/.test(line))
  return { name: String(error.name), value: String(error.message), traceback: stack.join('\n') }
}

let interrupt // ends the run that waits for something
async function evaluate(request) {
  const stopped = new Promise((resolve) => { interrupt = () => resolve('stopped') })
  const evaluated = post('Runtime.evaluate', { expression: prepared(request), replMode: true, awaitPromise: true })
  const answer = await Promise.race([evaluated, stopped])
  if (answer === 'stopped') return { failure: interrupted }
  const value = await valueOf(answer.result)
  if (answer.exceptionDetails) return { failure: describe(value) }
  return { value }
}

const interrupted = { name: 'Interrupted', value: 'the run was interrupted', traceback: '' }
let count = 0
async function run(request) {
  emit('count', { count: ++count })
  Object.assign(process.env, request.global)
  const before = {}
  for (const [name, value] of Object.entries(request.env ?? {})) {
    before[name] = process.env[name]
    process.env[name] = value
  }
  try {
    const { value, failure } = await evaluate(request)
    if (failure) emit('error', failure)
    else if (value !== undefined) emitResult(bundle(value), true)
  } catch (error) {
    const ended = /terminated|code execution/i.test(String(error.message))
    emit('error', ended ? interrupted : describe(error))
  }
  interrupt = undefined
  for (const [name, value] of Object.entries(before)) {
    if (value === undefined) delete process.env[name]
    else process.env[name] = value
  }
  for (const { stream, write } of outputs) await new Promise((resolve) => write.call(stream, MARK, resolve))
  emit('done', { id: request.id })
}

const control = `
const { parentPort, workerData } = require('node:worker_threads')
const { Session } = require('node:inspector')
const { Socket } = require('node:net')
const heard = new Int32Array(workerData)
const stop = () => {
  Atomics.store(heard, 0, 0)
  parentPort.postMessage({ interrupt: true })
  if (Atomics.wait(heard, 0, 0, 200) !== 'timed-out') return
  // Who does not answer is busy with a program.
  const session = new Session()
  session.connectToMainThread()
  session.post('Runtime.terminateExecution')
  session.disconnect()
}
require('node:readline').createInterface({ input: new Socket({ fd: 3, writable: false }) })
  .on('line', (line) => { line === '' ? stop() : parentPort.postMessage(JSON.parse(line)) })
  .on('close', () => parentPort.postMessage({ end: true }))
`

const shared = new SharedArrayBuffer(4)
const heard = new Int32Array(shared)
const worker = new Worker(control, { eval: true, workerData: shared })
let last = Promise.resolve()
worker.on('message', (request) => {
  if (request.end) process.exit()
  if (!request.interrupt) {
    last = last.then(() => run(request))
    return
  }
  Atomics.store(heard, 0, 1)
  Atomics.notify(heard, 0)
  interrupt?.()
})
// The interrupt comes over descriptor 3; the signal is for the children of programs.
process.on('SIGINT', () => {})
// What nobody waits for must not end the kernel.
for (const event of ['uncaughtException', 'unhandledRejection']) {
  process.on(event, (error) => console.error(error))
}
Object.defineProperty(globalThis, Symbol.for('sandpit.receive'), { value: receive })
globalThis.__import = load
globalThis.require = createRequire(path.join(process.cwd(), 'kernel.js'))
globalThis.display = display
emit('ready', {})
