package wire

// NewKey asks for an API key.
type NewKey struct {
	Name  string  `json:"name,omitempty" maxLength:"100"`
	Owner string  `json:"owner" minLength:"1" maxLength:"100" doc:"The owner whose sandboxes the key reaches."`
	Admin bool    `json:"admin,omitempty" doc:"Gives the rights of an administrator."`
	TTL   float64 `json:"ttl_seconds,omitempty" minimum:"0" doc:"Seconds until the key expires. Default: never."`
}

// Progress is the content of the event "progress".
type Progress struct {
	Done  int64 `json:"done" doc:"Bytes."`
	Total int64 `json:"total" doc:"Bytes; 0 if unknown."`
}
