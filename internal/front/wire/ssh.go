package wire

import "time"

// SSHKey is a public key that reaches the sandboxes of its owner by SSH.
type SSHKey struct {
	ID          string    `json:"id"`
	Owner       string    `json:"owner" doc:"Whose sandboxes it reaches."`
	Name        string    `json:"name,omitempty" doc:"For people."`
	Type        string    `json:"type" doc:"Such as ssh-ed25519."`
	Fingerprint string    `json:"fingerprint" doc:"As ssh-keygen -l prints it."`
	APIKey      string    `json:"api_key,omitempty" doc:"ID of the API key that the SSH key ends with; absent if it depends on none."`
	CreatedAt   time.Time `json:"created_at"`
	LastUsedAt  time.Time `json:"last_used_at,omitzero" doc:"Give or take a minute."`
}

// NewSSHKey asks for a public key to be registered.
type NewSSHKey struct {
	PublicKey string `json:"public_key" minLength:"1" maxLength:"16384" doc:"The line of a .pub file of OpenSSH."`
	Name      string `json:"name,omitempty" maxLength:"100" doc:"Default: the comment of the key."`
	// Owner is whose sandboxes it reaches. Others than the caller are for administrators.
	Owner string `json:"owner,omitempty" maxLength:"100" doc:"Whose sandboxes it reaches; others than oneself are for administrators. Default: the caller."`
}

// SSHServer is where sandboxes are reached by SSH.
type SSHServer struct {
	// Host is "" where the server listens at all addresses.
	Host string `json:"host,omitempty" doc:"Absent where the server listens at all of its addresses."`
	Port int    `json:"port"`
	// HostKey is what the server is known by: a type and a key.
	HostKey string `json:"host_key" doc:"What the server is known by, as in a known_hosts file."`
}

// SSHAccess asks for a way into one sandbox by SSH.
type SSHAccess struct {
	// TTL is how many seconds the token is good for. Default: 60.
	TTL float64 `json:"ttl_seconds,omitempty" minimum:"0" maximum:"600" doc:"Seconds that the token is good for. Default: 60."`
}

// SSHToken is a way into one sandbox by SSH, once.
type SSHToken struct {
	SSHServer
	// User is the name to log in with.
	User string `json:"user" doc:"The name to log in with."`
	// Token is the password.
	Token     string    `json:"token" doc:"The password. It is good for one connection, and never told again."`
	ExpiresAt time.Time `json:"expires_at"`
}
