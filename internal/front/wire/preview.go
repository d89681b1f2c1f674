package wire

// NewPreviewURL is a request for the URL of a port.
type NewPreviewURL struct {
	Expires float64 `json:"expires_seconds,omitempty" minimum:"0" doc:"Seconds until the URL expires, at most 30 days. Default: an hour."`
	Note    string  `json:"note,omitempty" maxLength:"200" doc:"A comment that lists of tokens show, at most 200 bytes."`
}

// NewPreviewTicket is a request for a ticket of a port.
type NewPreviewTicket struct {
	Expires float64 `json:"expires_seconds,omitempty" minimum:"0" doc:"Seconds until the ticket expires, at most 5 minutes. Default: 30."`
	Session float64 `json:"session_seconds,omitempty" minimum:"0" doc:"Seconds for which the browser that used the ticket can see the port, at most 30 days. Default: an hour."`
}

// PortAccess is a request to make a port public or private.
type PortAccess struct {
	Public bool `json:"public" doc:"Whether everyone with the URL may see the port."`
}
