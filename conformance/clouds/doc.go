// Package clouds has tests of a server whose sandboxes are in a cloud: tools, interpreters and the command log work there
// as they do on this machine.
package clouds
