package wire

// Health is the response of a server that works. One that does not work responds with a
// Problem that names the failed checks.
type Health struct {
	OK     bool    `json:"ok"`
	Checks []Check `json:"checks,omitempty" nullable:"false" doc:"The checks that were made."`
}

// Check is the result of a health check.
type Check struct {
	Name string `json:"name" doc:"What was checked, such as engine, store or queue."`
	OK   bool   `json:"ok"`
}
