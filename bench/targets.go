package main

import "fmt"

// The metrics with targets. Other metrics are named where they are measured.
const (
	metricFirst        = "new box to first output"
	metricExec         = "exec true"
	metricCreate       = "create a box that stays"
	metricPSS          = "memory per idle box, sum of PSS"
	metricLateCreate   = "create, last boxes"
	metricEarly        = "create, first boxes"
	metricUpload       = "upload 100 MB"
	metricDownload     = "download 100 MB"
	metricLine         = "line to answer in %d shells"
	metricConnect      = "connect and echo"
	metricReceive      = "received by one connection"
	metricSend         = "sent by one connection"
	metricPage         = "request of a page"
	metricEcho         = "message to echo on %d WebSockets, all at once"
	metricSilent       = "failures of %d WebSockets"
	metricTool         = "call of the tool file_list"
	metricShellExec    = "call of the tool shell_exec with true"
	metricAgentStep    = "step of an agent beside model and tools"
	metricAgentMemory  = "memory of %d agents after %d steps"
	metricE2BWarm      = "E2B's SDK: create of a warm pool, and commands.run"
	metricE2BCold      = "E2B's SDK: create and commands.run"
	metricE2BRun       = "E2B's SDK: commands.run"
	metricE2BWrite     = "E2B's SDK: files.write of 10 MB"
	metricE2BRead      = "E2B's SDK: files.read of 10 MB"
	metricE2BCode      = "E2B's SDK: first runCode of a new sandbox"
	metricE2BHundred   = "E2B's SDK: 100 creates at once, all"
	metricDaytonaWarm  = "Daytona's SDK: create of a warm pool, and executeCommand"
	metricDaytonaCold  = "Daytona's SDK: create and executeCommand"
	metricDaytonaRun   = "Daytona's SDK: executeCommand"
	metricDaytonaWrite = "Daytona's SDK: fs.uploadFile of 10 MB"
	metricDaytonaRead  = "Daytona's SDK: fs.downloadFile of 10 MB"
	metricDaytonaStart = "Daytona's SDK: start of a stopped sandbox"
	metricHeld         = "request of a page while %d connections are held"
	metricResume       = "resume in place"
	metricWake         = "resume from disk to first command, idle"
	metricSnapshot     = "snapshot with 100 MB in memory"
	metricFork         = "fork with 100 MB in memory to first command"
	metricForks        = "%d such forks at once, all to first command"
	metricStopStart    = "stop and start with 100 MB of files"
	metricTemplate     = "create of a template to the answer of its web server"
	metricFrozen       = "memory of a box that is paused on disk"
	metricFrozenDisk   = "disk of a box that is paused on disk, idle"
)

// targetBoxes is the number of boxes in the memory target.
const targetBoxes = 100

// target is the goal for a figure.
type target struct {
	What string  `json:"target"`
	Most float64 `json:"most"`
	// Got is meaningful if Known: the figures may not have been measured.
	Got   float64 `json:"got"`
	Known bool    `json:"known"`
	Pass  bool    `json:"pass"`
}

// judge compares a report with the targets.
func judge(r *report) []target {
	between := func(a, of, b, to string) (float64, bool) {
		x, have := r.find(a, of)
		y, had := r.find(b, to)
		q, ok := ratio(x.P50, y.P50)
		return q, have && had && ok
	}
	first, firstKnown := between(metricFirst, bySandpit, metricFirst, byDocker)
	pool, poolKnown := between(metricFirst, bySandpitPool, metricFirst, byDocker)
	exec, execKnown := between(metricExec, bySandpit, metricExec, byDocker)
	dockerExec, dockerExecKnown := between(metricExec, bySandpitDocker, metricExec, byDocker)
	dockerCreate, dockerCreateKnown := between(metricCreate, bySandpitDocker, metricCreate, byDocker)
	late, lateKnown := between(metricLateCreate, bySandpit, metricEarly, bySandpit)
	httpExec, httpExecKnown := r.find(metricExec, bySandpitHTTP)
	httpFirst, httpFirstKnown := r.find(metricFirst, bySandpitHTTP)
	httpUp, httpUpKnown := r.find(metricUpload, bySandpitHTTP)
	httpDown, httpDownKnown := r.find(metricDownload, bySandpitHTTP)
	line, lineKnown := r.find(fmt.Sprintf(metricLine, shellBoxes*shellsEach), bySandpitHTTP)
	connect, connectKnown := r.find(metricConnect, bySandpit)
	receive, receiveKnown := r.find(metricReceive, bySandpit)
	send, sendKnown := r.find(metricSend, bySandpit)
	direct, directKnown := r.find(metricPage, bySandpit)
	preview, previewKnown := r.find(metricPage, bySandpitHTTP)
	silent, silentKnown := r.find(fmt.Sprintf(metricSilent, pageSockets), bySandpitHTTP)
	tool, toolKnown := r.find(metricTool, bySandpit)
	mcp, mcpKnown := r.find(metricTool, byMCP)
	mcpHTTP, mcpHTTPKnown := r.find(metricTool, byMCPHTTP)
	shell, shellKnown := r.find(metricShellExec, bySandpit)
	shellMCP, shellMCPKnown := r.find(metricShellExec, byMCP)
	program, programKnown := r.find(metricShellExec, byExec)
	step, stepKnown := r.find(metricAgentStep, bySandpit)
	web, webKnown := r.find(metricTemplate, bySandpitHTTP)
	saved := func(metric string) func(what string, most float64) target {
		x, known := r.find(metric, bySandpit)
		return func(what string, most float64) target { return check(what, most, x.P50, known) }
	}
	pss, pssKnown := r.find(atBoxes(metricPSS, targetBoxes), bySandpit)
	return []target{
		check("new box to first output, of docker run", 0.5, first, firstKnown),
		check("box of a warm pool to first output, of docker run", 0.05, pool, poolKnown),
		check("exec of true, of docker exec", 0.15, exec, execKnown),
		check("exec of true in a container of ours, of docker exec", 0.3, dockerExec, dockerExecKnown),
		check("create of a container of ours, of docker run -d", 1.2, dockerCreate, dockerCreateKnown),
		check(fmt.Sprintf("MB of PSS for an idle box, at %d boxes", targetBoxes), 16, pss.P50, pssKnown),
		check("create with many boxes there, of the first creates", 1.3, late, lateKnown),
		check("ms for exec of true over HTTP", 6, httpExec.P50, httpExecKnown),
		check("ms from create to first output over HTTP, by a pool", 15, httpFirst.P50, httpFirstKnown),
		check("ms for each MB of a 100 MB file in over HTTP (150 MB/s)", 1000.0/150, inverse(httpUp.P50), httpUpKnown),
		check("ms for each MB of a 100 MB file out over HTTP (150 MB/s)", 1000.0/150, inverse(httpDown.P50), httpDownKnown),
		check(fmt.Sprintf("ms from a line to its answer in %d shells, p99", shellBoxes*shellsEach), 30, line.P99, lineKnown),
		check("ms to connect from an online box and have a byte echoed", 3, connect.P50, connectKnown),
		check("ms for each MB into an online box (400 MB/s)", 1000.0/400, inverse(receive.P50), receiveKnown),
		check("ms for each MB out of an online box (400 MB/s)", 1000.0/400, inverse(send.P50), sendKnown),
		check("ms that a preview adds to a request", 3, preview.P50-direct.P50, directKnown && previewKnown),
		check("ms of an agent's loop for a step, beside model and tools", 2, step.P50, stepKnown),
		check("ms that MCP adds to a call of a tool, by a program", 2, mcp.P50-tool.P50, toolKnown && mcpKnown),
		check("ms that MCP adds to a call of a tool, over HTTP", 2, mcpHTTP.P50-tool.P50, toolKnown && mcpHTTPKnown),
		check("ms that shell_exec of true takes more than an exec of it", 2, shell.P50-program.P50, shellKnown && programKnown),
		check("ms that shell_exec of true by MCP takes more than an exec of it", 2, shellMCP.P50-program.P50, shellMCPKnown && programKnown),
		check(fmt.Sprintf("failures of %d WebSockets at a time", pageSockets), 0, silent.P50, silentKnown),
		check("ms from create to the answer of a template's web server", 300, web.P50, webKnown),
		saved(metricResume)("ms to resume in place", 10),
		saved(metricWake)("ms to resume an idle box from disk", 150),
		saved(metricSnapshot)("ms for a snapshot with 100 MB in memory", 250),
		saved(metricFork)("ms for a fork of it to its first command", 300),
		saved(fmt.Sprintf(metricForks, manyForks))(fmt.Sprintf("ms for %d forks of it to their first commands", manyForks), 1500),
		saved(metricStopStart)("ms to stop and start with 100 MB of files", 1000),
		saved(metricFrozen)("MB of memory of a box that is paused on disk", 0),
		saved(metricFrozenDisk)("MB of disk of an idle box that is paused on disk", 10),
	}
}

// judgeSDKs compares what the SDKs of E2B and Daytona take with the targets.
func judgeSDKs(r *report) []target {
	judge := func(what string, most float64, metric, by string) target {
		x, known := r.find(metric, by)
		got := x.P50
		if x.Unit == unitMBps {
			got = inverse(got)
		}
		return check(what, most, got, known)
	}
	return []target{
		judge("ms for E2B's SDK to create of a warm pool and run true", 25, metricE2BWarm, byE2B),
		judge("ms for E2B's SDK to create and run true", 150, metricE2BCold, byE2B),
		judge("ms for E2B's SDK to run true", 8, metricE2BRun, byE2B),
		judge("ms for E2B's SDK for each MB of a file in (100 MB/s)", 10, metricE2BWrite, byE2B),
		judge("ms for E2B's SDK for each MB of a file out (100 MB/s)", 10, metricE2BRead, byE2B),
		judge("ms for E2B's SDK to run code in a new sandbox", 400, metricE2BCode, byE2B),
		judge("ms for Daytona's SDK to create of a warm pool and run true", 30, metricDaytonaWarm, byDaytona),
		judge("ms for Daytona's SDK to run true", 10, metricDaytonaRun, byDaytona),
		judge("ms for Daytona's SDK for each MB of a file in (100 MB/s)", 10, metricDaytonaWrite, byDaytona),
		judge("ms for Daytona's SDK for each MB of a file out (100 MB/s)", 10, metricDaytonaRead, byDaytona),
		judge("ms for Daytona's SDK to start a stopped sandbox", 400, metricDaytonaStart, byDaytona),
	}
}

func check(what string, most, got float64, known bool) target {
	return target{What: what, Most: most, Got: got, Known: known, Pass: known && got <= most}
}

// inverse converts MB/s to ms for each MB. Unmeasured figures stay 0.
func inverse(speed float64) float64 {
	if speed <= 0 {
		return 0
	}
	return 1000 / speed
}

// missed reports whether a target was measured and missed.
func missed(targets []target) bool {
	for _, t := range targets {
		if t.Known && !t.Pass {
			return true
		}
	}
	return false
}

// atBoxes returns the name of a metric that was measured with a number of boxes.
func atBoxes(metric string, boxes int) string { return fmt.Sprintf("%s (%d boxes)", metric, boxes) }
