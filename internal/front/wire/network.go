package wire

import "github.com/sandpit-dev/sandpit"

// NetworkDecisions are lines of a network log.
type NetworkDecisions struct {
	Items []sandpit.NetworkDecision `json:"items" nullable:"false" doc:"The oldest first. Equal decisions are one item with a count."`
}
