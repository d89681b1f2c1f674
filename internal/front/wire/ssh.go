package wire

import "time"

// SSHKey is a public key that reaches the sandboxes of its owner by SSH.
type SSHKey struct {
	ID          string    `json:"id"`
	Owner       string    `json:"owner" doc:"The owner whose sandboxes the key reaches."`
	Name        string    `json:"name,omitempty" doc:"A label for people."`
	Type        string    `json:"type" doc:"The type of the key, such as ssh-ed25519."`
	Fingerprint string    `json:"fingerprint" doc:"The fingerprint as ssh-keygen -l prints it."`
	APIKey      string    `json:"api_key,omitempty" doc:"ID of the API key that the SSH key ends with; absent if it depends on none."`
	CreatedAt   time.Time `json:"created_at"`
	LastUsedAt  time.Time `json:"last_used_at,omitzero" doc:"Accurate to about a minute."`
}

// NewSSHKey is a request to register a public key.
type NewSSHKey struct {
	PublicKey string `json:"public_key" minLength:"1" maxLength:"16384" doc:"The line of a .pub file of OpenSSH."`
	Name      string `json:"name,omitempty" maxLength:"100" doc:"Default: the comment of the key."`
	Owner     string `json:"owner,omitempty" maxLength:"100" doc:"The owner whose sandboxes the key reaches; only administrators may name another owner. Default: the client's own."`
}

// SSHServer is the address and key of the SSH server.
type SSHServer struct {
	Host    string `json:"host,omitempty" doc:"Host name or address; absent if the server listens on all addresses."`
	Port    int    `json:"port"`
	HostKey string `json:"host_key" doc:"The server's public key, as in a known_hosts file."`
}

// SSHAccess is a request for a one-time token for SSH.
type SSHAccess struct {
	TTL float64 `json:"ttl_seconds,omitempty" minimum:"0" maximum:"600" doc:"Seconds until the token expires. Default: 60."`
}

// SSHToken is a one-time token that opens one sandbox by SSH.
type SSHToken struct {
	SSHServer
	User      string    `json:"user" doc:"The user name of the login."`
	Token     string    `json:"token" doc:"The password. It works for one connection; no other response contains it."`
	ExpiresAt time.Time `json:"expires_at"`
}
