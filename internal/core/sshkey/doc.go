// Package sshkey knows who may reach which sandboxes by SSH: public keys that owners
// have registered, and tokens that let somebody into one sandbox, once.
package sshkey
