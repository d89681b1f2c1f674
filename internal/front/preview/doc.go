// Package preview lets people see what programs in sandboxes serve over HTTP: by a host
// name of its own for each port, by a path, or by headers.
//
// Nobody sees anything unless a port was made public or a token is shown that was signed
// for this one port of this one sandbox. What a sandbox answers is hostile: it must not
// reach what its viewer may do elsewhere, above all not the API.
package preview
