// Package docker creates sandboxes as containers of a Docker engine, or of Podman's compatible
// service, on this machine or another.
//
// The guest comes from a volume, which is created once for each engine and guest and works with any
// image; it needs no program of the image. It is the container's first process, and package stdioconn
// carries everything over its standard input and output. So it works without a network, and calls
// need no docker exec.
//
// Data that an engine cannot change later, such as the owner of a claimed sandbox, is in a record
// below Options.StateDir that only its user can read. Sandboxes outlive the Provider. A container
// shares the machine's kernel, which is weaker than provider/gvisor unless Options.Runtime provides
// its own kernel.
package docker
