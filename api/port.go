package api

import "time"

// PreviewURL has the addresses at which a port of a sandbox can be seen.
type PreviewURL struct {
	Port      int       `json:"port"`
	URL       string    `json:"url,omitempty" doc:"The URL with a host name of the port's own; absent if the server has no preview domain."`
	PathURL   string    `json:"path_url,omitempty" doc:"The URL with a path at an address that all previews share; absent if the server has no such address."`
	Token     string    `json:"token,omitempty" doc:"The token that opens the port, as part of the URLs or as the header Sandpit-Preview-Token; absent if the port is public."`
	Public    bool      `json:"public" doc:"Whether the port needs no token."`
	ExpiresAt time.Time `json:"expires_at,omitzero" doc:"When the token expires."`
}

// PreviewTicket has the addresses at which one browser can see a port of a sandbox.
type PreviewTicket struct {
	Port      int       `json:"port"`
	URL       string    `json:"url,omitempty" doc:"The URL with a host name of the port's own; absent if the server has no preview domain."`
	PathURL   string    `json:"path_url,omitempty" doc:"The URL with a path at an address that all previews share; absent if the server has no such address."`
	Ticket    string    `json:"ticket,omitempty" doc:"The ticket that opens the port once, as part of either URL; absent if the port is public."`
	Public    bool      `json:"public" doc:"Whether the port needs no token."`
	ExpiresAt time.Time `json:"expires_at,omitzero" doc:"When the ticket expires."`
}

// SharedPort is a port of a sandbox that needs no key.
type SharedPort struct {
	Port    int    `json:"port"`
	Public  bool   `json:"public,omitempty" doc:"Everyone with the URL may see the port."`
	Address string `json:"address,omitempty" doc:"The address on the server's machine at which the port is published; absent if it is not."`
}
