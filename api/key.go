package api

import "time"

// Key is an API key, without its secret.
type Key struct {
	ID         string    `json:"id"`
	Name       string    `json:"name,omitempty" doc:"A label for people."`
	Owner      string    `json:"owner" doc:"The owner whose sandboxes the key reaches."`
	Admin      bool      `json:"admin,omitempty" doc:"The key has the rights of an administrator."`
	CreatedAt  time.Time `json:"created_at"`
	ExpiresAt  time.Time `json:"expires_at,omitzero"`
	LastUsedAt time.Time `json:"last_used_at,omitzero" doc:"Accurate to about a minute."`
}

// MadeKey is a new key with its secret, which no other response contains.
type MadeKey struct {
	Key
	Secret string `json:"secret" doc:"e2b_ and 40 hexadecimal digits. The server does not keep it; no other response contains it."`
}

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
