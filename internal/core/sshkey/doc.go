// Package sshkey decides about access to sandboxes by SSH: by public keys that owners
// registered, and by tokens that admit their holder to one sandbox, once.
package sshkey
