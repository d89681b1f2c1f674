package commandscreen

// The modes in which verdicts can be used, as configurations name them.
const (
	modeOff  = "off"  // every command runs
	modeWarn = "warn" // a warning is shown, and the command runs
	modeAsk  = "ask"  // a person decides; without one it is like deny
)

// Under returns the action for the verdict in a mode: off, warn, ask or deny. Any other
// text counts as deny, which refuses dangerous and hidden commands and warns of the rest.
func (v Verdict) Under(mode string) Action {
	switch {
	case mode == modeOff || v.Action == Allow:
		return Allow
	case mode == modeWarn || v.Action == Warn:
		return Warn
	case mode == modeAsk:
		return Ask
	}
	return Deny
}
