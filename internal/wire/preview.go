package wire

import "time"

// NewPreviewURL asks for the URL of a port.
type NewPreviewURL struct {
	// Expires is how many seconds it is good for. Default: an hour.
	Expires float64 `json:"expires_seconds,omitempty" minimum:"0" doc:"Seconds that it is good for, at most 30 days. Default: an hour."`
}

// PreviewURL is where a port of a sandbox is seen.
type PreviewURL struct {
	Port int `json:"port"`
	// URL has a host name of the port's own, PathURL a path. "": the server has none.
	URL     string `json:"url,omitempty" doc:"With a host name of the port's own; absent if the server has none."`
	PathURL string `json:"path_url,omitempty" doc:"With a path, at an address that all previews share; absent if the server has none."`
	// Token is what opens the port, as a part of the URLs and as the header
	// Sandpit-Preview-Token. "": it is public.
	Token  string `json:"token,omitempty" doc:"What opens the port, also as the header Sandpit-Preview-Token; absent if it is public."`
	Public bool   `json:"public" doc:"Whether everybody may see it."`
	// ExpiresAt is when the token ends.
	ExpiresAt time.Time `json:"expires_at,omitzero" doc:"When the token ends."`
}

// PortAccess says who may see a port.
type PortAccess struct {
	Public bool `json:"public" doc:"Whether everybody may see it who knows its URL."`
}

// SharedPort is a port of a sandbox that is seen without a key.
type SharedPort struct {
	Port int `json:"port"`
	// Public says that everybody may see it by its URL.
	Public bool `json:"public,omitempty" doc:"Everybody may see it by its URL."`
	// Address is where it is published on the server's machine; "": it is not.
	Address string `json:"address,omitempty" doc:"Where it is published on the server's machine."`
}
