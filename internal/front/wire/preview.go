package wire

import "time"

// NewPreviewURL asks for the URL of a port.
type NewPreviewURL struct {
	// Expires is how many seconds it is good for. Default: an hour.
	Expires float64 `json:"expires_seconds,omitempty" minimum:"0" doc:"Seconds that it is good for, at most 30 days. Default: an hour."`
	// Note is for people who list tokens.
	Note string `json:"note,omitempty" maxLength:"200" doc:"A comment that lists of tokens show: at most 200 bytes."`
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

// NewPreviewTicket asks for a ticket of a port.
type NewPreviewTicket struct {
	// Expires is how many seconds the ticket is good for. Default: 30.
	Expires float64 `json:"expires_seconds,omitempty" minimum:"0" doc:"Seconds that the ticket is good for, at most 5 minutes. Default: 30."`
	// Session is how many seconds the browser that used it sees the port. Default: an hour.
	Session float64 `json:"session_seconds,omitempty" minimum:"0" doc:"Seconds that the browser sees the port which used the ticket, at most 30 days. Default: an hour."`
}

// PreviewTicket is where one browser sees a port of a sandbox.
type PreviewTicket struct {
	Port int `json:"port"`
	// URL has a host name of the port's own, PathURL a path. "": the server has none.
	URL     string `json:"url,omitempty" doc:"With a host name of the port's own; absent if the server has none."`
	PathURL string `json:"path_url,omitempty" doc:"With a path, at an address that all previews share; absent if the server has none."`
	// Ticket is what opens the port once, as a part of either URL. "": it is public.
	Ticket string `json:"ticket,omitempty" doc:"What opens the port once, as a part of either URL; absent if it is public."`
	Public bool   `json:"public" doc:"Whether everybody may see it."`
	// ExpiresAt is when the ticket ends.
	ExpiresAt time.Time `json:"expires_at,omitzero" doc:"When the ticket ends."`
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
