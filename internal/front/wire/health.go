package wire

// Health says that the server can do its work. When it cannot, there is a Problem
// instead, which names what is missing.
type Health struct {
	OK     bool    `json:"ok"`
	Checks []Check `json:"checks,omitempty" nullable:"false" doc:"What was looked at."`
}

// Check is one thing that the server needs.
type Check struct {
	Name string `json:"name" doc:"Such as engine, store or queue."`
	OK   bool   `json:"ok"`
}
