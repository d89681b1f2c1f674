package wire

// NewSSHKey is a request to register a public key.
type NewSSHKey struct {
	PublicKey string `json:"public_key" minLength:"1" maxLength:"16384" doc:"The line of a .pub file of OpenSSH."`
	Name      string `json:"name,omitempty" maxLength:"100" doc:"Default: the comment of the key."`
	Owner     string `json:"owner,omitempty" maxLength:"100" doc:"The owner whose sandboxes the key reaches; only administrators may name another owner. Default: the client's own."`
}

// SSHAccess is a request for a one-time token for SSH.
type SSHAccess struct {
	TTL float64 `json:"ttl_seconds,omitempty" minimum:"0" maximum:"600" doc:"Seconds until the token expires. Default: 60."`
}
