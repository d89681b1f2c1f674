// Package preview is the preview proxy: it serves ports of sandboxes over HTTP, by a host
// name for each port, by a path, or by headers.
//
// Access needs a public port, or a token that was signed for this port of this sandbox. The
// response of a sandbox is hostile: it must not gain what its viewer may do elsewhere, above
// all not the API.
package preview
