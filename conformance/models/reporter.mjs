// Writes one line of JSON for each test that has ended, for models_test.go.
export default async function* reporter(events) {
  for await (const { type, data } of events) {
    if (type === 'test:stdout' || type === 'test:stderr') {
      process.stderr.write(data.message)
    }
    if (type !== 'test:pass' && type !== 'test:fail') continue
    const failure = data.details?.error
    yield JSON.stringify({
      name: data.name,
      skipped: Boolean(data.skip || data.todo),
      error: type === 'test:fail' ? describe(failure?.cause ?? failure) : '',
    }) + '\n'
  }
}

function describe(error) {
  if (error === undefined) return 'failed'
  const stack = error?.stack ?? ''
  return stack.includes(error?.message) ? stack : `${error}\n${stack}` // the SDK's builds have a stack of their own
}
