// Package fake creates sandboxes without any isolation, for tests of everything above providers. It
// is the second implementation of the contract: it has all states and every optional ability, and
// runs the real guest in the test's own process. Commands, files, terminals and watches are real, and
// run on the machine itself as the test's user. Never expose it to anything but a test.
//
// A World is the machine that the sandboxes live on. Several Providers can share a World. To simulate
// a crash, a test drops a Provider; the next one lists and attaches its sandboxes. A test can inject
// failures and delays, end a sandbox from outside, and inspect the state of a sandbox.
//
// Differences from a real sandbox, besides isolation:
//
//   - Each sandbox has its own directory with its home and its working directory: commands start in
//     DIR/workspace for "/workspace". All other absolute paths, also in file calls, are the machine's.
//   - Ports are the machine's loopback ports, except the guest's own.
//   - The only user is the test's user. Mounts are Unsupported, and a host name has no effect.
//   - Images are HostImage and all builds of templates, which both are the machine itself, and those
//     that sandpit.SnapshotImage names. A snapshot contains files and no memory.
//   - Limits and network policies are recorded and have no effect.
//   - The files of an archived sandbox stay where they are.
package fake
