// Does with E2B's SDK what it reads, a word a line, and prints how many milliseconds that
// took: in one process, so that node's own start is not measured.
import { createInterface } from 'node:readline'
import { Sandbox as Interpreter } from '@e2b/code-interpreter'
import { Sandbox } from 'e2b'

const create = () => Sandbox.create('base', { timeoutMs: 600_000 })
const large = new Uint8Array(10_000_000).fill(97).buffer
let box
let kernels // the snapshot of a sandbox in which they run

async function timed(act) {
  const begin = performance.now()
  await act()
  return performance.now() - begin
}

const acts = {
  async life() {
    let made
    const took = await timed(async () => {
      made = await create()
      await made.commands.run('true')
    })
    await made.kill()
    return took
  },
  async open() {
    return timed(async () => {
      box = await create()
    })
  },
  run: () => timed(() => box.commands.run('true')),
  write: () => timed(() => box.files.write('/tmp/large', large)),
  async read() {
    let got
    const took = await timed(async () => {
      got = await box.files.read('/tmp/large', { format: 'bytes' })
    })
    if (got.length !== large.byteLength) throw new Error(`read ${got.length} bytes`)
    return took
  },
  async hundred() {
    let made = []
    const took = await timed(async () => {
      made = await Promise.allSettled(Array.from({ length: 100 }, create))
    })
    await Promise.all(made.map((m) => m.value?.kill()))
    const failed = made.find((m) => m.status === 'rejected')
    if (failed) throw failed.reason
    return took
  },
  // kernels has Python's kernel run in a sandbox with this machine's programs, and saves it.
  async kernels() {
    const made = await Interpreter.create('code', { timeoutMs: 600_000 })
    try {
      await made.commands.run('/.sandpit/sandpit-guest interpreter -languages python', { background: true, timeoutMs: 0 })
      return await timed(async () => {
        const headers = { 'E2b-Sandbox-Id': made.sandboxId, 'E2b-Sandbox-Port': '49999' }
        for (const end = Date.now() + 60_000; !(await fetch(`${made.jupyterUrl}/health`, { headers })).ok; ) {
          if (Date.now() > end) throw new Error('the kernel of Python does not start')
          await new Promise((resolve) => setTimeout(resolve, 100))
        }
        kernels = (await made.createSnapshot()).snapshotId
      })
    } finally {
      await made.kill()
    }
  },
  async code() {
    const made = await Interpreter.create(kernels, { timeoutMs: 600_000 })
    try {
      let got
      const took = await timed(async () => {
        got = await made.runCode('6 * 7')
      })
      if (got.text !== '42') throw new Error(`6 * 7 is ${got.text}: ${got.error?.value}`)
      return took
    } finally {
      await made.kill()
    }
  },
  close: () => timed(() => box.kill()),
}

for await (const word of createInterface({ input: process.stdin })) {
  let out
  try {
    out = { ms: await acts[word]() }
  } catch (e) {
    out = { error: `${e?.stack ?? e}` }
  }
  process.stdout.write(JSON.stringify(out) + '\n')
}
