"""The topics of the made-up company Northgate: one block of tables a topic, as plain data for ``synthetic``.

The form of a table is that of ``corpus.made_up.lexicon``.
"""

from heldin.corpus.made_up.lexicon import PHRASES, Tables, tables


def _topic(text: str, every_topic: Tables) -> Tables:
    """The tables of one topic: its own, with its verbs split into forms, and those that every topic shares."""
    own = tables(text)
    base, past, gerund = zip(*(verb.split() for verb in own.pop("verb")), strict=True)
    return {**every_topic, **own, "step": own["step"] + every_topic["step"], "do": base, "did": past, "doing": gerund}


_TOPICS = """
team: finance
thing: budget | quarterly forecast | expense report | cost estimate | spending plan | variance report |
  accrual schedule | capital request
verb: review reviewed reviewing | approve approved approving | revise revised revising |
  reconcile reconciled reconciling
matter: contractor spending | the accrual cutoff | the currency adjustment | overtime costs |
  the carry-over from {month}
fact: spending on contractors came in {pct} above plan for {month} |
  we have {money} left for {project} until the end of the quarter |
  the controller wants every accrual above {money} explained |
  the {site} cost center is {pct} under plan for the year |
  moving {money} out of travel would close the gap for {project} |
  the board has released only {money} of the reserve so far
problem: {num} of the line items sit in the wrong cost center | the totals are off by {money} |
  the {month} figures {do_not} tie to the ledger | nobody has signed off on the {money} for {project} |
  the exchange rate in the {site} tab is {num} months old
step: rerun the numbers with the {month} actuals | move {money} to the {site} cost center |
  ask the controller about the reserve for {project} | split the overhead between {site} and the head office |
  add a line for {money} of contingency

team: recruiting
thing: job posting | interview plan | offer letter | shortlist | hiring plan | scorecard | reference check |
  onboarding plan
verb: review reviewed reviewing | update updated updating | finish finished finishing | discuss discussed discussing
matter: the salary band | the notice period | the panel | relocation costs | the internship program in {site}
fact: we have had {num} applications for the {site} role since {day_past} |
  the candidate from {site} can start in {month} | {num} of the interviews for {project} are already booked |
  the salary range now tops out at {money} | the agency charges {pct} of the first-year salary |
  the panel preferred the second candidate by {num} points
problem: {num} candidates have dropped out since {day_past} | the panel has no free slot before {day} |
  the posting for {site} still shows the old title | we have no feedback from {num} of the interviewers |
  the offer is {money} below what the candidate asked for
step: call the candidate in {site} about the offer | book a room for {num} interviews |
  post the {site} role on the careers page | collect the scorecards from the {project} panel |
  raise the offer by {money}

team: logistics
thing: delivery schedule | packing list | route plan | customs form | freight quote | loading plan | stock count |
  carrier contract
verb: check checked checking | correct corrected correcting | confirm confirmed confirming | update updated updating
matter: the customs hold in {site} | the pallet shortage | fuel surcharges | the night shift | damaged cartons
fact: {big} cartons left {site} on {day_past} | the truck for {client} reaches {site} around {time} |
  fuel surcharges went up {pct} in {month} | the warehouse in {site} is {pct} full |
  the carrier can take {num} more pallets on {day} | a container to {site} now costs {money}
problem: {num} pallets for {client} are stuck at customs in {site} | the carrier missed the pickup on {day_past} |
  the stock count in {site} is short by {big} units | the driver had no paperwork for {num} of the crates |
  the dock in {site} is closed until {day}
step: send the {num} missing pallets by road | ask the carrier for a later pickup in {site} |
  recount the {big} units in bay {id} | file the claim for {money} with the insurer |
  move the {client} load to the night truck

team: the network team
thing: firewall rule | backup job | migration plan | access request | maintenance window | patch list | router swap |
  disk report
verb: review reviewed reviewing | check checked checking | document documented documenting |
  approve approved approving
matter: remote access | password resets | the mail outage | storage quotas | the old switches in {site}
fact: the backup in {site} took {num} hours on {day_past} | {big} mailboxes have moved to the new server |
  the line to {site} dropped {num} times since {day_past} | storage for {project} is {pct} full |
  the new switches cost {money} each | the patch reached {pct} of the laptops by {day_past}
problem: {num} servers in {site} missed the {month} patch | the backup for {project} failed at {time} |
  {num} people still cannot reach the shared drive | the certificate for the {site} gateway expires on {day} |
  the monitoring page shows {big} stale alerts
step: restart the gateway in {site} | give {colleague} access to the {project} folder |
  move {big} mailboxes over the weekend | replace the {num} oldest switches in {site} |
  test the restore on {num} files from {month}

team: legal
thing: contract draft | supplier agreement | lease | license | confidentiality agreement | signature page |
  claim letter | amendment
verb: review reviewed reviewing | redline redlined redlining | sign signed signing | amend amended amending
matter: the liability cap | payment terms | the governing law | early termination | the renewal date | data protection
fact: {client} accepts a liability cap of {money} | the notice period in clause {id} is {num_days} days |
  the current term ends on {day} | outside counsel quoted {money} for the {project} review |
  {client} wants a discount of {pct} for early payment | clause {id} was copied from the {site} lease
problem: clause {id} contradicts the order of precedence | {client} struck out {num} of our changes |
  the {site} entity is named wrongly on page {id} | nobody has countersigned since {day_past} |
  the cap of {money} is missing from schedule {id}
step: send clean copies to {client} | ask {client} to accept clause {id} as it stands |
  get the signature from the {site} director | lower the cap to {money} | add the {project} work to schedule {id}

team: sales
thing: proposal | price list | account plan | pipeline report | renewal offer | discount request | call summary |
  sales deck
verb: present presented presenting | update updated updating | rework reworked reworking |
  discuss discussed discussing
matter: volume discounts | the renewal with {client} | the trade fair in {site} | commission splits | late payers
fact: {client} placed an order for {big} units on {day_past} | the {site} region closed {money} in {month} |
  {client} expects a discount of {pct} | our win rate went up by {pct} in {month} |
  {num} new leads came out of the fair in {site} | the renewal with {client} is worth {money} a year
problem: {client} has a cheaper quote by {pct} | {num} accounts in {site} have no owner |
  the order for {big} units is still not in the system | {client} has not paid the {money} from {month} |
  the demo for {client} clashes with the review on {day}
step: call {client} about the {month} order | offer {client} a discount of {pct} |
  bring {num} samples to the meeting in {site} | hand the {site} accounts to {colleague} |
  log the {num} open leads in {site}

team: the release team
thing: release plan | code review | build script | design note | feature list | sprint board | test branch |
  change log
verb: simplify simplified simplifying | update updated updating | review reviewed reviewing | share shared sharing
matter: the login screen | response times | the search index | error messages | the payment module | version {id}
fact: version {id} of {project} went live on {day_past} | the page now loads {pct} faster in {site} |
  {num} of the open tickets are fixed in the branch | the nightly build finishes at {time} |
  {project} handled {big} requests an hour on {day_past} | the freeze for {project} starts on {day}
problem: the build broke {num} times since {day_past} | {num} tests fail on the {project} branch |
  the search index is missing {big} entries | the import for {client} times out after {num} minutes |
  response times got {pct} worse with version {id}
step: roll {project} back to version {id} | fix the {num} failing tests on that branch |
  delay the freeze for {project} by {num} days | load {big} sample records into the test system |
  split the ticket into {num} smaller ones

team: quality
thing: test report | defect list | inspection plan | sample batch | calibration log | complaint file | checklist |
  control chart
verb: review reviewed reviewing | sign signed signing | update updated updating | file filed filing
matter: surface scratches | the torque limits | batch {id} | supplier defects | the humidity readings
fact: batch {id} passed with a defect rate of {pct} | the line in {site} ran {big} units without a reject |
  the new gauge reads {pct} higher than the old one | {client} returned {num} parts on {day_past} |
  scrap in {site} cost us {money} in {month} | the auditor will be in {site} on {day}
problem: {num} parts from {site} failed the pressure test | the gauge in {site} is {num} weeks past calibration |
  {client} found scratches on {num} panels | the humidity log stops at {time} on {day_past} |
  we cannot trace {big} units of batch {id}
step: hold the {big} units of batch {id} | repeat the pressure test on {num} samples |
  send the {num} worst parts to {site} | tighten the limit for batch {id} |
  invite {client} to the inspection in {site}

team: facilities
thing: floor plan | seating chart | cleaning contract | parking list | repair order | moving plan | badge request |
  lease summary
verb: update updated updating | confirm confirmed confirming | print printed printing | check checked checking
matter: the lift in {site} | the heating | the kitchen on floor {floor} | bicycle racks | meeting room screens
fact: {num} desks on floor {floor} will be free from {month} | the landlord in {site} pays {pct} of the repair |
  the movers quoted {money} for floor {floor} | power will be off in {site} from {time} on {day} |
  the new chairs for {site} cost {money} | {num} parking spaces in {site} are reserved for visitors
problem: the heating on floor {floor} has been out since {day_past} |
  {num} badges {do_not} open the side door in {site} | the roof in {site} leaks above desk {id} |
  the movers {cannot} come before {day} | the screen in {room} has been dark since {day_past}
step: move {num} desks to floor {floor} | order {num} chairs for {room} | ask the landlord in {site} for {money} |
  lock the side entrance in {site} | label the {num} crates for the {site} move

team: the travel desk
thing: itinerary | hotel booking | visa letter | travel request | car rental | agenda | meeting schedule |
  visitor list
verb: check checked checking | confirm confirmed confirming | change changed changing | forward forwarded forwarding
matter: train tickets | the hotel in {site} | daily allowances | the visa rules | the trip to {site}
fact: the flight to {site} leaves at {time} on {day} | the hotel in {site} holds {num} rooms for us until {day} |
  the fare to {site} went up by {money} | the train takes {num} hours longer than the flight |
  the allowance in {site} is {money} a day | {client} will send a car at {time}
problem: the hotel in {site} lost {num} of our bookings | my connection in {site} is only {num} minutes |
  the visa will not arrive before {day} | the fare is {money} over the limit |
  the {time} train to {site} was cancelled
step: book {num} rooms in {site} | take the early train from {site} | extend the visit to {site} by {num} days |
  send the passport copies to {client} | claim the {money} for the {site} trip

team: training
thing: course outline | workshop plan | slide set | handout | exercise sheet | attendance list | course survey |
  video script
verb: revise revised revising | print printed printing | share shared sharing | translate translated translating
matter: the safety course | certificates | the mentoring program | new starters in {site} | the {month} workshop
fact: {num} people from {site} have signed up for {day} | {pct} of the group passed the test on {day_past} |
  the trainer from {client} costs {money} a day | the workshop in {site} starts at {time} |
  the survey came back with {num} answers | the video part now runs {num} minutes
problem: {num} people never got the link for {day} | the room in {site} seats only {num} |
  {pct} of the certificates run out in {month} | the slides still show {project} in the old layout |
  the trainer {cannot} do {day}
step: open {num} more seats in {site} | run the course twice in {site} | cut the theory part to {num} minutes |
  print {num} copies for the {site} group | remind the {num} people who have not answered

team: marketing
thing: campaign plan | press release | brochure | newsletter | landing page | event brief | product flyer |
  customer story
verb: proofread proofread proofreading | update updated updating | publish published publishing | edit edited editing
matter: the new logo | the booth in {site} | click rates | the holiday campaign | quotes from {client}
fact: the newsletter went to {big} readers on {day_past} | {pct} of the readers clicked through to {project} |
  the booth in {site} costs {money} | {client} agreed to be quoted by name |
  {big} people visited the {project} page in {month} | the printer needs the files by {time} on {day}
problem: the logo on page {id} is the old one | {client} has not approved the quote |
  the printer wants {money} more for the rush | {num} links on the {project} page are dead |
  sign-ups fell by {pct} in {month}
step: print {big} copies for {site} | delay the launch of {project} by {num} weeks | ask {client} for a new photo |
  shorten the text on page {id} | spend another {money} on the {site} campaign

team: purchasing
thing: purchase order | supplier quote | invoice | delivery note | tender | vendor list | credit note |
  price comparison
verb: send sent sending | approve approved approving | file filed filing | check checked checking
matter: lead times | the minimum order | steel prices | the second supplier | office supplies for {site}
fact: {client} can deliver {big} units by {day} | the lead time from {site} is now {num} weeks |
  the quote from {client} is {pct} lower than last year | we paid {client} {money} on {day_past} |
  the minimum order went up to {big} units | {num} suppliers answered the tender for {project}
problem: {client} invoiced {money} twice | {big} units arrived in {site} without a delivery note |
  the price for {project} went up by {pct} overnight | {num} invoices from {month} are still open |
  the part number on line {id} {does_not} exist
step: order {big} units from {client} | dispute the {money} with {client} | get {num} more quotes for {project} |
  delay the delivery in {site} by {num} days | pay the {num} oldest invoices

team: safety
thing: risk assessment | incident report | evacuation plan | inspection sheet | permit | first aid list |
  drill report | chemical log
verb: file filed filing | review reviewed reviewing | post posted posting | complete completed completing
matter: the fire doors in {site} | forklift traffic | hard hats | the near miss on {day_past} | the drill
fact: the drill in {site} took {num} minutes | {site} has had {num} months without an injury |
  the inspector comes to {site} at {time} on {day} | {pct} of the staff in {site} hold a first aid certificate |
  the new guards for line {id} cost {money} | the forklift lane in {site} reopens on {day}
problem: {num} extinguishers in {site} are out of date | the fire door on floor {floor} {does_not} close |
  the permit for {project} ran out on {day_past} | a forklift hit rack {id} at {time} |
  {num} people skipped the drill on {day_past}
step: close lane {id} in {site} | replace the {num} extinguishers in {site} | repeat the drill in {site} |
  interview the {num} witnesses | renew the permit for {project}

team: payroll
thing: timesheet | vacation plan | pay slip | benefits form | overtime report | shift plan | leave request |
  bonus table
verb: check checked checking | submit submitted submitting | correct corrected correcting | approve approved approving
matter: parental leave | sick days | the pension change | the bonus for {month} | shift swaps in {site}
fact: the cutoff for {month} is {time} on {day} | {num} people in {site} have days left from {month} |
  the health plan goes up by {pct} in {month} | the bonus pool for {site} is {money} |
  overtime in {site} fell to {big} hours | {colleague} is on leave until {day}
problem: {num} timesheets from {site} are missing | my pay slip for {month} is short by {money} |
  the system booked {num} vacation days twice | the overtime from {day_past} was never paid |
  {pct} of the forms for {site} have no signature
step: pay the {money} with the {month} run | move {num} days of leave to {month} |
  swap the late shift with {colleague} | send the forms for {site} again | ask {site} for the {num} missing signatures

team: the data team
thing: dashboard | data extract | monthly report | survey summary | customer table | query | chart | data dictionary
verb: refresh refreshed refreshing | share shared sharing | rebuild rebuilt rebuilding | check checked checking
matter: duplicate records | the {month} churn | the access log | missing postcodes |
  the definition of active customers
fact: the table for {site} now holds {big} rows | {pct} of the {client} records had no postcode |
  churn in {site} went down to {pct} | the load for {project} finishes at {time} |
  the license for the tool costs {money} | {num} reports were last opened in {month}
problem: {big} rows were loaded twice on {day_past} | the {month} column mixes {num} currencies |
  the chart for {site} starts in the wrong month | the feed from {client} stopped at {time} |
  {pct} of the {project} records have no owner
step: reload the {month} data for {site} | delete the {big} duplicate rows | give {client} a copy without names |
  archive the {num} oldest reports | add {site} to the {project} dashboard

team: customer service
thing: complaint | refund request | service ticket | callback request | return request | warranty claim | chat log |
  escalation
verb: review reviewed reviewing | close closed closing | forward forwarded forwarding | file filed filing
matter: waiting times | the refund rules | the {site} hotline | broken parcels | angry calls
fact: we took {big} calls on {day_past} | the average wait in {site} is {num} minutes |
  {pct} of the refunds go through within {num} days | {client} is happy with the answer from {day_past} |
  the hotline in {site} opens at {time} from {month} | refunds for {project} came to {money}
problem: {client} has been waiting for {num} days | {big} mails are still unanswered |
  the refund of {money} went to the wrong account | {num} customers got the same parcel twice |
  the {site} line was down from {time} on {day_past}
step: refund {money} to {client} | call back the {num} customers from {site} | put {num} more people on the hotline |
  send {client} a new part from {site} | rewrite the answer for {project}
"""
TOPICS: tuple[Tables, ...] = tuple(_topic(text, PHRASES) for text in _TOPICS.strip().split("\n\n"))
