package api

import (
	"time"

	"github.com/sandpit-dev/sandpit"
)

// Token is a token that opens something of a sandbox without an API key, without its
// secret.
type Token struct {
	ID         string     `json:"id"`
	Kind       string     `json:"kind" enum:"guest,traffic,preview" doc:"guest: the sandbox's own protocol, and signed URLs of files; traffic: all ports of programs; preview: one port, by a URL or in a browser."`
	Sandbox    sandpit.ID `json:"sandbox"`
	Port       int        `json:"port,omitempty" doc:"Absent for all ports."`
	Owner      string     `json:"owner" doc:"The owner of the sandbox."`
	CreatedBy  string     `json:"created_by,omitempty" doc:"The owner of the key that requested the token; absent for an administrator's key, unless an administrator lists it."`
	Key        string     `json:"key,omitempty" doc:"ID of the API key that the token ends with; absent if a caller without a key requested it, and under the condition of created_by."`
	Note       string     `json:"note,omitempty" doc:"The comment given with the request."`
	CreatedAt  time.Time  `json:"created_at"`
	ExpiresAt  time.Time  `json:"expires_at,omitzero" doc:"Absent if the token ends with its key or sandbox."`
	LastUsedAt time.Time  `json:"last_used_at,omitzero" doc:"Accurate to about a minute."`
}

// SSHToken is a one-time token that opens one sandbox by SSH.
type SSHToken struct {
	SSHServer
	User      string    `json:"user" doc:"The user name of the login."`
	Token     string    `json:"token" doc:"The password. It works for one connection; no other response contains it."`
	ExpiresAt time.Time `json:"expires_at"`
}

// SSHServer is the address and key of the SSH server.
type SSHServer struct {
	Host    string `json:"host,omitempty" doc:"Host name or address; absent if the server listens on all addresses."`
	Port    int    `json:"port"`
	HostKey string `json:"host_key" doc:"The server's public key, as in a known_hosts file."`
}
